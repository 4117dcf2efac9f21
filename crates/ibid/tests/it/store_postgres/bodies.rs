//! What is kept beside a record, which has no id of its own: it goes with its generation, and with no other.

use ibid_core::change::Mark;
use ibid_core::policy::Policy;
use ibid_core::reap::Course;
use ibid_core::record::Nonce;
use ibid_testkit::contract::{SHORT, answering, fresh_under, put, reap_all};

use super::*;

fn kept(server: &Postgres, database: &str) -> String {
    server.sql(database, "select count(*) from ibid_body")
}

/// The begin of another generation of `record`.
fn again(record: &Record, clears_bodies: bool) -> Change {
    let mut begin =
        replace(record, Draft { due_in: Some(LONG), ..draft(&name_of(record), State::InProgress) });
    begin.clears_bodies = clears_bodies;
    let birth = begin.nonce;
    let draft = begin.draft.as_mut().expect("it writes");
    (draft.birth, draft.created) = (birth, Mark::Now);
    begin
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_generation_leaves_nothing_of_the_one_before_it() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    // All begun at one instant.
    let begins: Vec<Change> = (0..20).map(|_| begin()).collect();
    commit_all(&*store, begins.clone()).await;
    let records = async || {
        let ids = begins.iter().map(|begin| begin.id).collect();
        let found = store.load(ids).await.expect("a load succeeds");
        found.into_iter().map(|stored| stored.expect("it stands")).collect::<Vec<_>>()
    };
    let finishes = records().await.iter().map(|stored| finish(&stored.record)).collect();
    commit_all(&*store, finishes).await;
    assert_eq!(kept(&server, &database), "20");
    // Whether or not it says so, in one batch with those that stay.
    let begun = records().await;
    let news = begun[..10].iter().zip([true, false].into_iter().cycle());
    commit_all(&*store, news.map(|(stored, clears)| again(&stored.record, clears)).collect()).await;
    assert_eq!(kept(&server, &database), "10");
    for (place, stored) in records().await.into_iter().enumerate() {
        assert_eq!(stored.answer.is_some(), place >= 10, "only of those");
    }
    let finishes = records().await[..10].iter().map(|stored| finish(&stored.record)).collect();
    commit_all(&*store, finishes).await;
    assert_eq!(kept(&server, &database), "20");
}

/// One that keeps its generation and replaces what is beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_anew_while_the_rest_goes_is_there_once() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let begun = put(&*store, &begin()).await.record;
    let done = put(&*store, &finish(&begun)).await.record;
    let mut other = answering(replace(&done, draft(&name_of(&done), State::Completed)), b"another");
    other.clears_bodies = true;
    assert_eq!(put(&*store, &other).await.answer.as_deref(), Some(&b"another"[..]));
    assert_eq!(kept(&server, &database), "1");
}

/// A body of the very same instant belongs to whoever has its birth.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reaper_takes_what_is_beside_the_records_that_it_takes_and_nothing_else() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let short = Arc::new(Policy { lease: LONG, retention: SHORT, ..Policy::default() });
    let begins: Vec<Change> = (0..20)
        .map(|place| if place % 2 == 0 { fresh_under(&Name::fresh(), &short) } else { begin() })
        .collect();
    let fates = commit_all(&*store, begins.clone()).await;
    let record = |begin: &Change| match &fates[&begin.id] {
        Commit::Done(stamp) => begin.applied(*stamp, None).expect("it writes"),
        other => panic!("a fresh name is free: {other:?}"),
    };
    let records: Vec<Arc<Record>> = begins.iter().map(record).collect();
    assert_eq!(server.sql(&database, "select count(distinct created_at) from ibid_record"), "1");
    commit_all(&*store, records.iter().map(|record| finish(record)).collect()).await;
    pass(&server, &database, SECOND);
    assert_eq!(reap_all(&*store, Course::Records).await.removed, 10);
    assert_eq!(kept(&server, &database), "10");
    for record in records.iter().skip(1).step_by(2) {
        assert!(load(&*store, record.id).await.expect("it stays").answer.is_some());
    }
    assert_eq!(store.bodies(records[1].id, Nonce(!records[1].birth.0)).await.expect("an answer"), []);
}
