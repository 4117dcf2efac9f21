//! A record that this program can't read, because its policy is lost or a later ibid wrote it: it hides no other record,
//! keeps no task busy, and is never taken for absent.

use ibid::engine::Settings;
use ibid::transaction::{Database, SqlFault, TxError};
use ibid_core::scope::RecordId;
use ibid_core::store::{Browse, RecordFilter};
use ibid_testkit::contract::SHORT;

use super::*;
use crate::adapters::databases::{TestDatabase, TokioPostgresPools};
use crate::transaction::harness::World;

/// Inserts one unreadable record and three behind it, all due.
async fn begin_lapsed(server: &Postgres, database: &str, store: &PostgresStore) -> Vec<RecordId> {
    let mut ids = Vec::new();
    for _ in 0..4 {
        let begin = fresh(&TestRecord::fresh(), SHORT);
        assert!(matches!(commit_patiently(store, &Arc::new(begin.clone())).await, Commit::Done(_)));
        ids.push(begin.id);
    }
    pass(server, database, SECOND);
    server.sql(database, &format!("update ibid_record set policy = 0 where id = '\\x{}'", ids[0]));
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_can_not_be_read_hides_no_other() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let ids = begin_lapsed(&server, &database, &store).await;
    let due = async |limit| {
        let records = store.due(State::InProgress, limit).await.expect("due is answered");
        records.into_iter().map(|stored| stored.record.id).collect::<Vec<_>>()
    };
    assert_eq!(due(100).await, ids[1..]);
    // It is the first one, and fills a batch of one.
    assert_eq!(due(1).await, ids[1..2]);
    assert_eq!(due(3).await, ids[1..]);
    let mut sorted = ids[1..].to_vec();
    sorted.sort_unstable();
    let (mut listed, mut after) = (Vec::new(), None);
    while let Some(stored) = store
        .list(RecordFilter::default().with(|filter| {
            filter.after = after;
            filter.limit = 1;
        }))
        .await
        .expect("a list")
        .pop()
    {
        listed.push(stored.record.id);
        after = Some(stored.record.id);
    }
    assert_eq!(listed, sorted, "page by page");
    // Loading it by id fails.
    assert!(!store.load(vec![ids[0]]).await.expect_err("it can't be read").is_transient());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn begins_on_an_unreadable_record_leave_nothing_behind() {
    let world = World::<TokioPostgresPools>::new(TestDatabase::postgres()).await;
    let bob = world.other_node().await;
    let _held = world.begin_on(&bob, "k").await;
    world.sql("update ibid_record set policy = 0").await;
    for _ in 0..20 {
        assert!(world.ibid.begin(world.ask("k")).await.is_err());
    }
    let settled = tokio::time::timeout(Settings::default().begin_timeout * 10, world.ibid.settled()).await;
    settled.expect("no task keeps retrying");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_policy_is_not_taken_for_a_lost_lease() {
    let world = World::<TokioPostgresPools>::new(TestDatabase::postgres()).await;
    let mut attempt = world.begin("k").await;
    world.sql("delete from ibid_policy").await;
    let refused = attempt.inside(world.db.begin().await.unwrap()).await;
    assert!(matches!(&refused, Err(TxError::Sql(error)) if error.fault() == SqlFault::Wrong), "{refused:?}");
    // A process that stores the policy again, through any connection, makes it readable again.
    let bob = world.other_node().await;
    drop(world.begin_on(&bob, "another").await);
    assert!(attempt.inside(world.db.begin().await.unwrap()).await.is_ok());
}
