//! Two processes begin the same keys at the same moment. A begin without a rival is a plain insert, which fails for the
//! whole batch; no caller may see that failure.

use std::collections::HashMap;

use ibid_core::scope::RecordId;
use ibid_testkit::contract::put;
use tokio::sync::Barrier;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_processes_racing_on_a_key_have_one_winner() {
    let server = Postgres::start();
    let database = server.create_database();
    let stores = [open(&server, &database).await, open(&server, &database).await];
    // The server logs a line for each hot-path statement that failed.
    let rivals = || server.log().matches("duplicate key value violates unique constraint").count();
    let mut rounds = 0;
    while rounds < ROUNDS_MIN || rivals() == 0 {
        rounds += 1;
        assert!(rounds <= ROUNDS_MAX, "they never met");
        one_round(&stores).await;
    }
    // The server names one rival at a time, and a flight is sent at most eight times.
    let batches = rounds * (KEYS / BATCH + 1);
    assert!(rivals() <= 2 * 8 * batches, "{} flights of {batches} batches failed", rivals());
    // A failed flight is sent again, without the one change that the server names. Only a row that stays locked for long names none.
    let diverted: u64 = stores.iter().map(|store| store.batch_counts().diverted).sum();
    let locked = server.log().matches("canceling statement due to lock timeout").count();
    assert!(diverted <= (rivals() + locked * BATCH) as u64, "{diverted} changes left the hot path");
    let counts = "select count(*), count(*) filter (where state = 3) from ibid_record";
    let all = rounds * KEYS;
    assert_eq!(server.sql(&database, counts), format!("{all}|{all}"), "each was begun and finished once");
    let responses = "select count(*) from ibid_record where body is not null";
    assert_eq!(server.sql(&database, responses), all.to_string());
}

/// Flights stop to look for taken ids while they meet none, so a flight that meets one fails as a whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flight_that_meets_a_taken_id_fails_no_other_begin() {
    let server = Postgres::start();
    let database = server.create_database();
    let [ours, theirs] = [open(&server, &database).await, open(&server, &database).await];
    let failed = || server.log().matches("duplicate key value violates unique constraint").count();
    for round in 1..=3 {
        // After some flights that meet no taken id, flights do not look.
        for _ in 0..40 {
            commit_all(&*ours, vec![begin()]).await;
        }
        for _ in 0..3 {
            let name = TestRecord::fresh();
            let taken = put(&*theirs, &fresh(&name, LONG)).await.record;
            let begins = (0..20).map(|_| begin()).chain([fresh(&name, LONG)]);
            let begins: Vec<Arc<Change>> = begins.map(Arc::new).collect();
            for (change, fate) in begins.iter().zip(commit_each(&ours, &begins).await) {
                match fate.expect("no begin fails") {
                    Commit::Done(_) => assert_ne!(change.id, taken.id),
                    Commit::Conflict(stored) => assert_eq!(stored.expect("it exists").record, taken),
                }
            }
        }
        assert_eq!(failed(), round, "only the first of the three");
    }
    assert_eq!(ours.batch_counts().diverted, 0, "none left the hot path");
}

/// Both stores begin the same names, and each finishes the records that it won.
async fn one_round(stores: &[Arc<PostgresStore>; 2]) {
    let names: Arc<Vec<TestRecord>> = Arc::new((0..KEYS).map(|_| TestRecord::fresh()).collect());
    let line = Arc::new(Barrier::new(2));
    let racers = stores.clone().map(|store| {
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
    let [left, right] = racers;
    let left: HashMap<RecordId, (Change, Commit)> = left.await.expect("a racer ends");
    let right: HashMap<RecordId, (Change, Commit)> = right.await.expect("a racer ends");
    for name in names.iter() {
        let (winner, loser) = match (&left[&name.id], &right[&name.id]) {
            ((winner, Commit::Done(_)), (_, loser)) | ((_, loser), (winner, Commit::Done(_))) => {
                (winner, loser)
            }
            fates => panic!("neither won: {fates:?}"),
        };
        match loser {
            Commit::Conflict(Some(stands)) => {
                assert_eq!(stands.record.birth, winner.nonce, "the conflict has the winner")
            }
            other => panic!("both won, or the loser got no record: {other:?}"),
        }
    }
}

const KEYS: usize = 500;
const BATCH: usize = 50;

/// Several rounds, because a store has to continue on the hot path after a collision.
const ROUNDS_MIN: usize = 3;

/// Ten batches start together in each round: that none of them collides is practically impossible.
const ROUNDS_MAX: usize = 100;
