//! Policies that no record can name any more are removed.

use ibid_core::policy::Policy;
use ibid_core::reap::ReapTarget;
use ibid_core::record::Flags;
use ibid_testkit::contract::{fresh_under, put, reap_all};

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn reap_policies(store: &PostgresStore) -> u64 {
    let counted = browse(store).count_reapable(ReapTarget::Policies).await.expect("it is counted").remove;
    let removed = reap_all(store, ReapTarget::Policies).await.removed;
    assert_eq!(counted, removed, "the preview matches");
    removed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_is_removed_once_no_record_can_name_it() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let [used, dead] = [2, 3].map(|lease| {
        Arc::new(Policy::default().with(|policy| {
            policy.lease = Duration::from_secs(lease);
            policy.retention = DAY;
            policy.tombstone = DAY;
        }))
    });
    let running = put(&*store, &fresh_under(&TestRecord::fresh(), &used)).await.record;
    put(&*store, &finish(&running)).await;
    let running = put(&*store, &fresh_under(&TestRecord::fresh(), &dead)).await.record;
    let flags = Flags { dead_letter: true, ..Flags::default() };
    let letter = finish(&running);
    put(&*store, &Change { draft: letter.draft.map(|draft| Draft { flags, ..draft }), ..letter }).await;
    store.due(State::InProgress, None, 1).await.expect("due is answered");
    pass(&server, &database, 2 * DAY);
    reap_all(&*store, ReapTarget::Records).await;
    assert_eq!(reap_policies(&store).await, 0, "a tombstone may still name it");
    pass(&server, &database, 2 * DAY);
    reap_all(&*store, ReapTarget::Records).await;
    assert_eq!(reap_policies(&store).await, 1, "that of the dead letter stays");
    let left = "select (select count(*) from ibid_policy), (select count(*) from ibid_walk)";
    assert_eq!(server.sql(&database, left), "1|1", "and its position goes with it");
    // A process that uses it again stores it again.
    let again = open(&server, &database).await;
    put(&*again, &fresh_under(&TestRecord::fresh(), &used)).await;
    assert_eq!(server.sql(&database, left), "2|1");
}

/// A record that waits for long is not written, but the reaper meets it every hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_stays_while_a_record_is_not_finished() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let name = TestRecord::fresh();
    put(&*store, &insert(&name, draft(&name, State::Unknown))).await;
    for _ in 0..3 {
        pass(&server, &database, 400 * DAY);
        reap_all(&*store, ReapTarget::Records).await;
        assert_eq!(reap_policies(&store).await, 0);
        assert!(load(&*store, name.id).await.is_some(), "it can be read");
    }
    server.sql(&database, "delete from ibid_record");
    pass(&server, &database, 400 * DAY);
    assert_eq!(reap_policies(&store).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_policies_in_use_are_scanned_for_lapsed_leases() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    put(&*store, &begin()).await;
    let scan = include_str!("../../../src/store/postgres/sql/lease_scan_policies.sql");
    let scan = scan.replace("$1", "3610000000").replace("$2", "600000000");
    let scanned = || server.sql(&database, &format!("begin; {scan}; rollback")).lines().count();
    store.due(State::InProgress, None, 1).await.expect("due is answered");
    assert_eq!(scanned(), 1);
    // No process uses it any more, but the scan has not come by since.
    server.sql(&database, "update ibid_policy set seen_at = seen_at - 86400000000");
    assert_eq!(scanned(), 0, "the scan has passed every first lease");
    server.sql(&database, "update ibid_walk set at = at - 86400000000");
    assert_eq!(scanned(), 1, "there may be one that it has not passed");
}
