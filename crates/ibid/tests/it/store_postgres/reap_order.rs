//! The sort keys of upkeep: rows that they name before their time.

use ibid_core::policy::Policy;
use ibid_core::reap::ReapTarget;
use ibid_testkit::contract::{SHORT, fresh_under, put, reap_all};

use super::*;

const NOW: &str = "(extract(epoch from clock_timestamp()) * 1000000)::int8";

async fn due(store: &PostgresStore, state: State) -> Vec<TestRecord> {
    let page = store.due(state, None, 100).await.expect("due is answered");
    page.items.iter().map(|stored| name_of(&stored.record)).collect()
}

fn kept_for(retention: Duration) -> Change {
    let policy = Policy::default().with(|policy| {
        policy.lease = LONG;
        policy.retention = retention;
    });
    fresh_under(&TestRecord::fresh(), &Arc::new(policy))
}

fn ids(names: &[TestRecord]) -> Vec<ibid_core::scope::RecordId> {
    names.iter().map(|name| name.id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reaper_defers_a_late_finish_to_its_real_expiry() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let running = put(&*store, &kept_for(LONG)).await.record;
    let stored = put(&*store, &finish(&running)).await;
    // As if the record had begun long ago.
    server.sql(&database, "update ibid_record set reap_at = 1");
    let ripe = async || browse(&store).count_reapable(ReapTarget::Records).await.expect("it is counted");
    assert_eq!(ripe().await.remove, 0);
    let reaped = reap_all(&*store, ReapTarget::Records).await;
    assert_eq!((reaped.stripped, reaped.removed, reaped.held), (0, 0, 0), "nothing goes before its time");
    assert_eq!(load(&*store, running.id).await.map(|after| after.record), Some(stored.record));
    assert_eq!(server.sql(&database, "select reap_at = expires_at from ibid_record"), "t");

    let ran_long = put(&*store, &kept_for(SHORT)).await.record;
    pass(&server, &database, SECOND);
    put(&*store, &finish(&ran_long)).await;
    // Retention counts from the finish: this round may be too early, and then defers the row.
    let early = reap_all(&*store, ReapTarget::Records).await.removed;
    pass(&server, &database, SECOND);
    let later = reap_all(&*store, ReapTarget::Records).await.removed;
    assert_eq!(early + later, 1, "it goes at its real instant");
    assert_eq!(load(&*store, ran_long.id).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reaper_revisits_running_records_every_hour() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let running = put(&*store, &begin()).await.record;
    let lapsed = put(&*store, &fresh(&TestRecord::fresh(), SHORT)).await.record;
    pass(&server, &database, SECOND);
    server.sql(&database, "update ibid_record set reap_at = 1");
    assert!(due(&store, State::InProgress).await.is_empty(), "the scan does not see it any more");
    let reaped = reap_all(&*store, ReapTarget::Records).await;
    assert_eq!((reaped.stripped, reaped.removed, reaped.held), (0, 0, 0));
    let put_off = format!(
        "select count(*) from ibid_record where reap_at between {NOW} + 3500000000 and {NOW} + 3600000000"
    );
    assert_eq!(server.sql(&database, &put_off), "2");
    assert_eq!(ids(&due(&store, State::InProgress).await), [lapsed.id], "but the reaper came by");
    // Both were deferred by an hour, and are removed on time all the same.
    for record in [running, lapsed] {
        let over = Draft {
            expires_in: Some(SHORT),
            purge_in: Some(SHORT),
            ..finish(&record).draft.expect("a draft")
        };
        put(&*store, &replace(&record, over)).await;
    }
    pass(&server, &database, SECOND);
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.removed, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reaper_gets_past_more_rows_than_one_step_takes() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    commit_all(&*store, (0..300).map(|_| begin()).collect()).await;
    let running = put(&*store, &kept_for(SHORT)).await.record;
    put(&*store, &finish(&running)).await;
    pass(&server, &database, SECOND);
    server.sql(&database, "update ibid_record set reap_at = 7 where due_at is not null");
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.removed, 1, "also past those at one instant");
    assert_eq!(server.sql(&database, "select count(*) from ibid_record where reap_at = 7"), "0");
}
