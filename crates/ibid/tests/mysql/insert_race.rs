//! Two processes begin the same keys at the same moment.

use std::collections::HashMap;

use ibid_core::scope::RecordId;
use tokio::sync::Barrier;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_processes_racing_on_a_key_have_one_winner() {
    let server = MariaDb::shared();
    let database = server.create_database();
    let stores = [
        open(&server, &database).await,
        open(&server, &database).await,
        open_with(&server, &database, |options| options.hot_path = false).await,
    ];
    let names: Arc<Vec<TestRecord>> = Arc::new((0..KEYS).map(|_| TestRecord::fresh()).collect());
    let line = Arc::new(Barrier::new(stores.len()));
    let racers = stores.map(|store| {
        let (names, line) = (names.clone(), line.clone());
        tokio::spawn(async move {
            let mut fates = HashMap::new();
            for few in names.chunks(BATCH) {
                let begins: Vec<Change> = few.iter().map(|name| fresh(name, LONG)).collect();
                line.wait().await;
                let mut outcomes = commit_all(&*store, begins.clone()).await;
                for begin in begins {
                    let fate = outcomes.remove(&begin.id).expect("every change has a fate");
                    fates.insert(begin.id, (begin, fate));
                }
            }
            let won = fates.values().filter_map(|(begin, fate)| match fate {
                Commit::Done(stamp) => begin.apply(*stamp, None),
                Commit::Conflict(_) => None,
            });
            for (_, fate) in commit_all(&*store, won.map(|record| finish(&record)).collect()).await {
                assert!(matches!(fate, Commit::Done(_)), "the winner finishes: {fate:?}");
            }
            fates
        })
    });
    let mut all: Vec<HashMap<RecordId, (Change, Commit)>> = Vec::new();
    for racer in racers {
        all.push(racer.await.expect("a racer ends"));
    }
    for name in names.iter() {
        let (won, lost): (Vec<_>, Vec<_>) =
            all.iter().map(|fates| &fates[&name.id]).partition(|(_, fate)| matches!(fate, Commit::Done(_)));
        assert_eq!(won.len(), 1, "exactly one wins");
        for (_, fate) in lost {
            let Commit::Conflict(Some(stands)) = fate else { panic!("a loser got no record: {fate:?}") };
            assert_eq!(stands.record.birth, won[0].0.nonce, "the conflict has the winner");
        }
    }
    let counts = "select count(*), sum(state = 3), sum(body is not null) from ibid_record";
    assert_eq!(
        server.sql(&database, counts),
        format!("{KEYS}|{KEYS}|{KEYS}"),
        "each was begun and finished once"
    );
}

const KEYS: usize = 600;
const BATCH: usize = 50;
