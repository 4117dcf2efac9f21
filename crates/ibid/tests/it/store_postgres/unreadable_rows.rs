//! A record that this program can't read, because its policy is lost or a later ibid wrote it: it hides no other record,
//! keeps no task busy, and is never taken for absent.

use ibid_core::evidence::{EventName, Evidence, EvidenceQuery, EvidenceSubject};
use ibid_core::machine::Observation;
use ibid_core::scope::RecordId;
use ibid_core::store::RecordFilter;
use ibid_testkit::contract::SHORT;

use super::*;

/// Inserts one unreadable record and three behind it, all due.
async fn begin_lapsed(server: &Postgres, database: &str, store: &PostgresStore) -> Vec<RecordId> {
    let mut ids = Vec::new();
    for _ in 0..4 {
        let begin = fresh(&TestRecord::fresh(), SHORT);
        assert!(matches!(commit_patiently(store, &Arc::new(begin.clone())).await, Commit::Done(_)));
        ids.push(begin.id);
    }
    pass(server, database, SECOND);
    server.sql(database, &format!("update ibid_record set policy = 0 where id = '{}'", ids[0]));
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_can_not_be_read_hides_no_other() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let ids = begin_lapsed(&server, &database, &store).await;
    let due = async |limit| {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = store.due(State::InProgress, after, limit).await.expect("due is answered");
            assert!(!page.items.is_empty() || page.next.is_none(), "an unreadable record is no page");
            found.extend(page.items.into_iter().map(|stored| stored.record.id));
            after = page.next;
            if after.is_none() {
                return found;
            }
        }
    };
    // It is the first one, and fills a page of one.
    for limit in [100, 1, 3] {
        assert_eq!(due(limit).await, ids[1..], "{limit} at a time");
    }
    let mut sorted = ids[1..].to_vec();
    sorted.sort_unstable();
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let filter = RecordFilter::default().with(|filter| (filter.after, filter.limit) = (after.clone(), 1));
        let page = browse(&store).list(filter).await.expect("a list");
        listed.extend(page.items.into_iter().map(|stored| stored.record.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(listed, sorted, "page by page");
    // Loading it by id fails.
    assert!(!store.load(ids[0]).await.expect_err("it can't be read").is_transient());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_is_not_known_is_one_records_own_failure() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let names: Vec<TestRecord> = (0..3).map(|_| TestRecord::fresh()).collect();
    for name in &names {
        let unknown = Arc::new(insert(name, draft(name, State::Unknown)));
        assert!(matches!(commit_patiently(&store, &unknown).await, Commit::Done(_)));
    }
    server.sql(&database, &format!("update ibid_record set state = 9 where id = '{}'", names[0].id));
    assert!(!store.load(names[0].id).await.expect_err("it is not taken for absent").is_transient());
    let page = browse(&store).list(RecordFilter::default()).await.expect("a list");
    assert_eq!(page.items.len(), 2);
    let counts = browse(&store).count().await.expect("one such record fails no count");
    assert_eq!(counts.by_state[4].value(), Some(2), "unknown ones: {counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evidence_that_can_not_be_read_hides_no_other() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let evidence = store.evidence().expect("it stores evidence");
    let about = TestRecord::fresh().id;
    for number in 0..4 {
        let name = EventName { source: "psp".into(), event: format!("evt_{number}") };
        let (about, what) = (EvidenceSubject::Record(about), Observation::NotExecuted);
        let one = Evidence { name, about, owner: None, what, age: Duration::ZERO };
        evidence.insert_evidence(one, LONG).await.expect("it is stored");
    }
    server.sql(&database, "update ibid_evidence set found = '\\x00' where event in ('evt_0', 'evt_2')");
    for which in [EvidenceQuery::All, EvidenceQuery::Of(about)] {
        for limit in [10, 1] {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = evidence.open_evidence(which, after, limit).await.expect("a page");
                found.extend(page.items.into_iter().map(|stored| stored.evidence.name.event));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(found, ["evt_1", "evt_3"], "{limit} at a time");
        }
    }
}

/// Tests through callers' transactions, which need their drivers.
#[cfg(all(feature = "tokio-postgres", feature = "sqlx-postgres", feature = "sqlx-sqlite"))]
#[cfg(all(feature = "diesel-async", feature = "sea-orm"))]
mod with_callers {
    use ibid::engine::Settings;
    use ibid::transaction::{Database, SqlFault, TxError};

    use crate::adapters::databases::{TestDatabase, TokioPostgresPools};
    use crate::transaction::harness::NodeOnDatabase;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn begins_on_an_unreadable_record_leave_nothing_behind() {
        let world = NodeOnDatabase::<TokioPostgresPools>::new(TestDatabase::postgres()).await;
        let bob = world.other_node().await;
        let _held = world.begin_on(&bob, "k").await;
        world.sql("update ibid_record set policy = 0").await;
        for _ in 0..20 {
            assert!(world.ibid.begin(world.ask("k")).await.is_err());
        }
        let settled =
            tokio::time::timeout(Settings::default().begin_timeout * 10, world.ibid.settled()).await;
        settled.expect("no task keeps retrying");
        assert!(!world.ibid.is_breaker_open(), "one record says nothing about the store");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lost_policy_is_not_taken_for_a_lost_lease() {
        let world = NodeOnDatabase::<TokioPostgresPools>::new(TestDatabase::postgres()).await;
        let mut attempt = world.begin("k").await;
        world.sql("delete from ibid_policy").await;
        let refused = attempt.join_tx(world.db.begin().await.unwrap()).await;
        assert!(
            matches!(&refused, Err(TxError::Sql(error)) if error.fault() == SqlFault::Wrong),
            "{refused:?}"
        );
        // A process that stores the policy again, through any connection, makes it readable again.
        let bob = world.other_node().await;
        drop(world.begin_on(&bob, "another").await);
        assert!(attempt.join_tx(world.db.begin().await.unwrap()).await.is_ok());
    }
}
