//! What the reaper leaves alone, and what it leaves behind.

use ibid_core::reap::Course;
use ibid_core::record::Note;
use ibid_testkit::contract::{answering, put, reap_all};

use super::*;

fn going() -> (Name, Change) {
    let name = Name::fresh();
    let change = insert(&name, Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) });
    (name, change)
}

#[tokio::test]
async fn a_business_row_outlives_the_record_that_it_points_to() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    server.sql(
        &database,
        "create table payment (amount int, record bytea references ibid_record (id) on delete set null)",
    );
    let (name, change) = going();
    put(&*store, &change).await;
    let stranger = stranger(&server, &database).await;
    let sql = "insert into payment values (7, $1)";
    stranger.execute(sql, &[&&name.id.as_bytes()[..]]).await.expect("a payment");
    assert_eq!(reap_all(&*store, Course::Records).await.removed, 1);
    assert_eq!(server.sql(&database, "select amount, record is null from payment"), "7|t");
}

#[tokio::test]
async fn a_record_with_a_call_still_to_be_made_stays() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let (name, change) = going();
    put(&*store, &change).await;
    let (other, change) = going();
    put(&*store, &change).await;
    let stranger = stranger(&server, &database).await;
    let sql = "insert into ibid_effect (birth, nonce, lease_us, created_at, count, tries, state, open, owes, record,
                                        name, kind, downstream_key, rules, tenant, payload)
               values (1, 1, 0, 0, 1, 0, 1, true, false, $1, 'mail', 'http', 'd', '', 'shop', '')";
    stranger.execute(sql, &[&&name.id.as_bytes()[..]]).await.expect("an effect");
    assert_eq!(reap_all(&*store, Course::Records).await.removed, 1, "only the other goes");
    assert!(load(&*store, other.id).await.is_none() && load(&*store, name.id).await.is_some());
    server.sql(&database, "update ibid_effect set open = false");
    assert_eq!(reap_all(&*store, Course::Records).await.removed, 1, "once it is made the record goes too");
    assert_eq!(server.sql(&database, "select count(*) from ibid_effect"), "1", "and the effect stays");
}

#[tokio::test]
async fn a_tombstone_holds_id_fingerprint_and_instants_and_goes_in_its_turn() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let name = Name::fresh();
    let note = Note { provider_id: Some("ch_1".to_owned()), ..Note::default() };
    let expired = Draft {
        expires_in: Some(Duration::ZERO),
        purge_in: Some(LONG),
        note,
        ..draft(&name, State::Completed)
    };
    put(&*store, &answering(insert(&name, expired), b"secret")).await;
    let step = reap_all(&*store, Course::Records).await;
    assert_eq!((step.stripped, step.removed), (1, 0));
    let columns = "select tenant || method || path || key, length(note) < 10, bare, expires_at is not null
                   from ibid_record";
    assert_eq!(server.sql(&database, columns), "|t|t|t");
    assert_eq!(server.sql(&database, "select count(*) from ibid_body"), "0");
    server.sql(&database, "update ibid_record set purge_at = 1");
    let step = reap_all(&*store, Course::Records).await;
    assert_eq!((step.stripped, step.removed), (0, 1));
}

#[tokio::test]
async fn an_effect_that_ended_goes_after_its_time_and_its_record_and_an_open_one_never() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let (name, change) = going();
    let birth = put(&*store, &change).await.record.birth.0.cast_signed();
    let stranger = stranger(&server, &database).await;
    let sql = "insert into ibid_effect (birth, nonce, lease_us, created_at, done_at, count, tries, state, open, owes,
                                        record, name, kind, downstream_key, rules, tenant, payload)
               values ($2, 1, 0, 0, 0, 1, 0, 1, $3, false, $1, $4, 'http', 'd', '', 'shop', '')";
    let other = Name::fresh();
    let (mine, others) = (&name.id.as_bytes()[..], &other.id.as_bytes()[..]);
    for (id, open, effect) in [(mine, false, "done"), (others, false, "done"), (others, true, "dead")] {
        stranger.execute(sql, &[&id, &birth, &open, &effect]).await.expect("an effect");
    }
    let course = Course::Effects { keep: LONG };
    let ripe = async || store.ripe(course).await.expect("it is counted").remove;
    assert_eq!((ripe().await, reap_all(&*store, course).await.removed), (1, 1), "the record of one is there");
    assert_eq!(reap_all(&*store, Course::Records).await.removed, 1);
    assert_eq!((ripe().await, reap_all(&*store, course).await.removed), (1, 1));
    assert_eq!((ripe().await, reap_all(&*store, course).await.removed), (0, 0));
    assert_eq!(server.sql(&database, "select name from ibid_effect"), "dead");
    server.sql(&database, "update ibid_effect set open = false, done_at = 4000000000000000");
    assert_eq!(
        (ripe().await, reap_all(&*store, course).await.removed),
        (0, 0),
        "nothing goes before its time"
    );
}
