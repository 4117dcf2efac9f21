//! All kinds of work at once on one database: two processes that begin the same keys, owners that finish, renew or go
//! silent, sweepers that take over, and reapers. In the end every reported outcome is the stored one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use ibid_core::reap::ReapTarget;
use ibid_core::scope::RecordId;
use ibid_core::store::RenewOutcome;
use ibid_testkit::contract::{commit, take_over};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::*;

/// Writes that were reported as done, by record.
type ReportedWrites = HashMap<RecordId, Vec<Change>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_reported_outcome_is_the_stored_one_under_stress() {
    let server = Postgres::shared();
    let database = server.create_database();
    let stores = [open(&server, &database).await, open(&server, &database).await];
    let names: Arc<Vec<TestRecord>> = Arc::new((0..KEYS).map(|_| TestRecord::fresh()).collect());
    let (line, over) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
    let renewals = Arc::new(AtomicUsize::new(0));
    let (mut holders, mut upkeep) = (JoinSet::new(), JoinSet::new());
    for store in &stores {
        holders.spawn(hold(store.clone(), names.clone(), line.clone(), renewals.clone()));
        upkeep.spawn(sweep(store.clone(), over.clone()));
        upkeep.spawn(reap(store.clone(), stranger(&server, &database).await, over.clone()));
    }
    let mut reported = ReportedWrites::new();
    let mut add = |some: ReportedWrites| {
        for (id, changes) in some {
            reported.entry(id).or_default().extend(changes);
        }
    };
    for some in holders.join_all().await {
        add(some);
    }
    // Records with a silent owner are all taken over before the sweepers end: those have seen the last of them lapse.
    let waiting = "select count(*) from ibid_record where state = 2";
    let until = Instant::now() + PATIENCE;
    while server.sql(&database, waiting) != "0" {
        assert!(Instant::now() < until, "one that lapsed is never found");
    }
    over.store(true, Ordering::SeqCst);
    for some in upkeep.join_all().await {
        add(some);
    }
    assert!(renewals.load(Ordering::SeqCst) > 0, "some held on");
    let (mut finished, mut taken) = (0, 0);
    for name in names.iter() {
        let stored = load(&*stores[0], name.id).await.expect("it exists");
        let [begun, ended] = &reported[&name.id][..] else {
            panic!("begun once and ended once: {:?}", reported[&name.id]);
        };
        assert_eq!(stored.record.birth, begun.nonce, "the reported begin is the stored one");
        assert!(ended.is_stored_as(&stored), "the reported end is the stored one");
        let answer = ended.response.as_ref().map(|response| &response.body[..]);
        assert_eq!(stored.body(), answer);
        if answer.is_some() { finished += 1 } else { taken += 1 }
    }
    assert!(finished > 0 && taken > 0, "finished {finished}, taken over {taken}");
    assert_eq!(server.sql(&database, "select count(*) from ibid_late"), "0");
}

/// Begins what it can win; of that it finishes a third, renews and finishes a third, and abandons a third.
async fn hold(
    store: Arc<PostgresStore>,
    names: Arc<Vec<TestRecord>>,
    line: Arc<Barrier>,
    renewals: Arc<AtomicUsize>,
) -> ReportedWrites {
    let mut reported = ReportedWrites::new();
    for few in names.chunks(BATCH) {
        let begins: Vec<Change> = few.iter().map(|name| fresh(name, LEASE)).collect();
        line.wait().await;
        let fates = commit_all(&*store, begins.clone()).await;
        let mut won = Vec::new();
        for begin in begins {
            if let Commit::Done(stamp) = fates[&begin.id] {
                won.extend(begin.apply(stamp, None));
                reported.insert(begin.id, vec![begin]);
            }
        }
        let ends: Vec<Arc<Record>> =
            won.iter().step_by(3).chain(won.iter().skip(1).step_by(3)).cloned().collect();
        let leases = won.iter().skip(1).step_by(3).map(|record| (record.id, record.version)).collect();
        let renewed = store.renew(leases).await.expect("a renewal succeeds");
        let renewed_count =
            renewed.iter().filter(|renewed| matches!(renewed, RenewOutcome::Until(_))).count();
        renewals.fetch_add(renewed_count, Ordering::SeqCst);
        let finishes: Vec<Change> = ends.iter().map(|record| finish(record)).collect();
        let fates = commit_all(&*store, finishes.clone()).await;
        for finish in finishes {
            if matches!(fates[&finish.id], Commit::Done(_)) {
                reported.entry(finish.id).or_default().push(finish);
            }
        }
    }
    reported
}

async fn sweep(store: Arc<PostgresStore>, over: Arc<AtomicBool>) -> ReportedWrites {
    let mut reported = ReportedWrites::new();
    while !over.load(Ordering::SeqCst) {
        for stored in contract::due(&*store, State::InProgress, 20).await {
            let record = stored.record;
            let takeover = take_over(&record, draft(&name_of(&record), State::Unknown));
            if matches!(commit(&*store, &takeover).await, Commit::Done(_)) {
                reported.entry(record.id).or_default().push(takeover);
            }
        }
    }
    reported
}

/// Another session makes the reaper visit records that are not due yet.
async fn reap(store: Arc<PostgresStore>, stranger: Client, over: Arc<AtomicBool>) -> ReportedWrites {
    let early = "update ibid_record set reap_at = 1
                 where id = any (array(select id from ibid_record where get_byte(uuid_send(id), 0) % 4 = 0 for update skip locked))";
    while !over.load(Ordering::SeqCst) {
        stranger.execute(early, &[]).await.expect("it does not wait");
        let reaped = store.reap(ReapTarget::Records, None, 50).await.expect("a reaping succeeds");
        assert_eq!((reaped.stripped, reaped.removed), (0, 0), "nothing is past its time");
    }
    ReportedWrites::new()
}

const KEYS: usize = 1200;
const BATCH: usize = 60;

/// Short enough that some lapse while their owners are about to finish them.
const LEASE: Duration = Duration::from_millis(8);

/// Far above what a loaded two-core machine needs: only a missed record reaches it.
const PATIENCE: Duration = Duration::from_secs(60);
