//! The reaper next to rows of the application.

use ibid_core::change::Draft;
use ibid_core::reap::ReapTarget;
use ibid_core::record::State;
use ibid_testkit::contract::{TICK, draft, insert, load, reap_all};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_the_application_refers_to_stays_alone() {
    let server = MariaDb::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let names: Vec<TestRecord> = (0..7).map(|_| TestRecord::fresh()).collect();
    let over = Some(Duration::ZERO);
    let gone = |name: &TestRecord| {
        insert(name, Draft { expires_in: over, purge_in: over, ..draft(name, State::Completed) })
    };
    commit_all(&*store, names.iter().map(gone).collect()).await;
    server.sql(
        &database,
        &format!(
            "create table orders (record binary(16) primary key, foreign key (record) references ibid_record (id)) engine = \
             InnoDB; insert into orders values (x'{}'), (x'{}')",
            names[2].id, names[5].id
        ),
    );
    tokio::time::sleep(TICK).await;
    let reaped = reap_all(&*store, ReapTarget::Records).await;
    assert_eq!((reaped.removed, reaped.held), (5, 2));
    for (nth, name) in names.iter().enumerate() {
        assert_eq!(load(&*store, name.id).await.is_some(), nth == 2 || nth == 5, "{nth}");
    }
    server.sql(&database, "drop table orders");
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.removed, 2, "then they go");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_goes_when_no_record_can_name_it() {
    let server = MariaDb::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let record = begin_some(&store, 1, LONG).await.remove(0);
    assert_eq!(reap_all(&*store, ReapTarget::Policies).await.removed, 0, "it was just used");
    server.sql(&database, "update ibid_policy set seen_at = 0, keep_us = 1");
    assert_eq!(reap_all(&*store, ReapTarget::Policies).await.removed, 0, "a record still runs under it");
    server.sql(&database, &format!("delete from ibid_record where id = x'{}'", record.id));
    assert_eq!(reap_all(&*store, ReapTarget::Policies).await.removed, 1);
}
