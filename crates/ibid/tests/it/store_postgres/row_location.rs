//! A finish updates the row at the ctid of its begin. The server may reuse a ctid for another row, and it moves rows.

use ibid_core::scope::RecordId;
use ibid_testkit::contract::put;

use super::*;

fn ctid_of(server: &Postgres, database: &str, id: RecordId) -> String {
    server.sql(database, &format!("select ctid from ibid_record where id = '{id}'"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finish_never_overwrites_a_row_that_reused_its_ctid() {
    let server = Postgres::start_with(&[("autovacuum", "off")]);
    let database = server.create_database();
    let store = open(&server, &database).await;
    let gone = put(&*store, &begin()).await.record;
    let ctid = ctid_of(&server, &database, gone.id);
    server.sql(&database, "delete from ibid_record");
    server.sql(&database, "vacuum ibid_record");
    let other = put(&*store, &begin()).await.record;
    assert_eq!(ctid_of(&server, &database, other.id), ctid, "its place was given to another");
    let fates = commit_all(&*store, vec![finish(&gone)]).await;
    assert!(matches!(fates[&gone.id], Commit::Conflict(None)), "{fates:?}");
    let stands = load(&*store, other.id).await.expect("it exists");
    assert_eq!((stands.record, stands.response), (other, None), "the other is as it was");
    assert_eq!(server.sql(&database, "select count(*) from ibid_body"), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finish_finds_its_record_wherever_the_server_has_moved_it() {
    let server = Postgres::start_with(&[("autovacuum", "off")]);
    let database = server.create_database();
    let store = open(&server, &database).await;
    let mut records = Vec::new();
    for _ in 0..10 {
        records.push(put(&*store, &begin()).await.record);
    }
    let (gone, moved) = records.split_at(5);
    let stranger = stranger(&server, &database).await;
    for record in gone {
        let delete = format!("delete from ibid_record where id = '{}'", record.id);
        stranger.execute(&delete, &[]).await.expect("it goes");
    }
    let ctid = ctid_of(&server, &database, moved[4].id);
    server.sql(&database, "vacuum full ibid_record");
    assert_ne!(ctid_of(&server, &database, moved[4].id), ctid, "the rest moved up");
    let fates = commit_all(&*store, records.iter().map(|record| finish(record)).collect()).await;
    for (index, record) in records.iter().enumerate() {
        match &fates[&record.id] {
            Commit::Done(_) => assert!(index >= 5),
            Commit::Conflict(None) => assert!(index < 5, "it was there all the while"),
            Commit::Conflict(stands) => panic!("it got another record: {stands:?}"),
        }
    }
    for record in moved {
        let stored = load(&*store, record.id).await.expect("it exists");
        assert_eq!((stored.record.birth, stored.body()), (record.birth, Some(&b"done"[..])));
    }
}
