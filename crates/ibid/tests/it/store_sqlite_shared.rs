//! The SQLite store in a shared file: an application's tables in the same file, and rows that refer to its records.

use std::sync::Arc;
use std::time::Duration;

use ibid::store::sqlite::{SqliteOpenError, SqliteOptions, SqliteStore};
use ibid_core::change::Draft;
use ibid_core::reap::ReapTarget;
use ibid_core::record::State;
use ibid_testkit::contract::{TICK, TestRecord, answering, commit_all, draft, insert, load, put, reap_all};
use rusqlite::{Connection, params};

use crate::store_sqlite::{File, files, sql, sqlite, sqlite_on};

/// An application's table with the names that ours used to have, its own header, and a row that must stay.
const SHOP: &str = "pragma application_id = 7; pragma user_version = 42;
    create table record (x); insert into record values ('theirs')";

/// A table whose rows refer to records.
const PAYMENT: &str = "create table payment (
    id integer primary key,
    record blob references ibid_record(id) on delete set null,
    cents integer not null
) strict;
create index payment_record on payment (record)";

/// Returns the header's numbers and the journal mode.
fn header(connection: &Connection) -> (i64, i64, String) {
    let header = "select (select * from pragma_application_id), (select * from pragma_user_version),
                         (select * from pragma_journal_mode)";
    connection
        .query_row(header, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .expect("a header is read")
}

fn one<T: rusqlite::types::FromSql>(connection: &Connection, sql: &str) -> T {
    connection.query_row(sql, [], |row| row.get(0)).expect("one value")
}

#[tokio::test]
async fn an_applications_database_gets_our_tables_too() {
    let file = File::fresh();
    sql(&file.path(), SHOP);
    let subject = sqlite_on(&file, |_| {});
    let name = TestRecord::fresh();
    put(&*subject.store, &insert(&name, draft(&name, State::InProgress))).await;
    let theirs = file.other_connection();
    assert_eq!(one::<String>(&theirs, "select x from record"), "theirs");
    assert_eq!(header(&theirs), (7, 42, "wal".to_owned()), "the header is the application's");
    drop((subject, theirs));
    let again = sqlite_on(&file, |options| options.create = false);
    assert!(load(&*again.store, name.id).await.is_some(), "it is known by its tables");
}

#[test]
fn tables_that_were_not_asked_for_are_not_made() {
    for theirs in [SHOP, "create table t (a)", "pragma application_id = 7"] {
        let file = File::fresh();
        sql(&file.path(), theirs);
        let before = std::fs::read(file.path()).expect("it is there");
        let options = SqliteOptions::default().with(|options| options.create = false);
        let error = SqliteStore::open(&file.path(), options).expect_err("none of our tables");
        assert!(matches!(error, SqliteOpenError::NoTables { .. }), "{error:?}");
        assert!(error.to_string().contains("ibid.db"), "the message names the file: {error}");
        assert_eq!(std::fs::read(file.path()).expect("it is there"), before, "{theirs}");
        assert_eq!(files(&file), ["ibid.db"], "{theirs}");
    }
}

#[tokio::test]
async fn a_purge_clears_references_and_keeps_their_rows() {
    let subject = sqlite();
    let name = TestRecord::fresh();
    put(&*subject.store, &insert(&name, going(&name))).await;
    let theirs = subject.file.other_connection();
    theirs.execute_batch(PAYMENT).expect("a table is made");
    theirs
        .execute("insert into payment (record, cents) values (?1, 4200)", [name.id.as_bytes()])
        .expect("a payment is made");
    subject.hands.advance(TICK);
    assert_eq!(reap_all(&*subject.store, ReapTarget::Records).await.removed, 1);
    assert_eq!(one::<i64>(&theirs, "select cents from payment where record is null"), 4200);
    assert_eq!(one::<i64>(&theirs, "select count(*) from pragma_foreign_key_check"), 0);
}

#[tokio::test]
async fn a_reference_that_forbids_it_holds_its_record_and_no_other() {
    let subject = sqlite();
    // More than one step removes, with a payment for each of the first ones.
    let names: Vec<TestRecord> = (0..600).map(|_| TestRecord::fresh()).collect();
    let referenced = &names[..300];
    for few in names.chunks(300) {
        let begin = |name: &TestRecord| answering(insert(name, going(name)), b"x");
        commit_all(&*subject.store, few.iter().map(begin).collect()).await;
        subject.hands.advance(TICK);
    }
    let theirs = subject.file.other_connection();
    theirs
        .execute_batch("create table audit (record blob not null references ibid_record(id)) strict")
        .expect("a table is made");
    for name in referenced {
        theirs.execute("insert into audit values (?1)", [name.id.as_bytes()]).expect("a line is written");
    }
    let reaped = reap_all(&*subject.store, ReapTarget::Records).await;
    assert_eq!((reaped.removed, reaped.held), (300, 300));
    for name in referenced {
        let stored = load(&*subject.store, name.id).await.expect("it is held");
        assert_eq!(stored.body(), Some(&b"x"[..]), "with its response");
    }
    theirs.execute("delete from audit", []).expect("the audit is over");
    assert_eq!(reap_all(&*subject.store, ReapTarget::Records).await.removed, 300);
}

#[tokio::test]
async fn records_of_the_same_instant_go_behind_many_that_are_held() {
    let subject = sqlite();
    let names: Vec<TestRecord> = (0..600).map(|_| TestRecord::fresh()).collect();
    for few in names.chunks(300) {
        commit_all(&*subject.store, few.iter().map(|name| insert(name, going(name))).collect()).await;
    }
    let theirs = subject.file.other_connection();
    let first = "create table audit (record blob not null references ibid_record(id)) strict;
                 insert into audit select id from ibid_record order by row limit 500";
    theirs.execute_batch(first).expect("a table is made");
    subject.hands.advance(TICK);
    let reaped = reap_all(&*subject.store, ReapTarget::Records).await;
    assert_eq!((reaped.removed, reaped.held), (100, 500));
}

#[tokio::test]
async fn a_record_stays_while_one_of_its_effects_is_open() {
    let subject = sqlite();
    let (busy, free) = (TestRecord::fresh(), TestRecord::fresh());
    let stored = put(&*subject.store, &insert(&busy, going(&busy))).await;
    put(&*subject.store, &insert(&free, going(&free))).await;
    let other = subject.file.other_connection();
    let call =
        "insert into ibid_effect_call (record, birth, name, owes, letter, downstream_key, rules, payload)
                values (?1, ?2, ?3, 0, 0, 'k', '{}', x'')";
    let effect = "insert into ibid_effect (seq, count, nonce, kind, state, blocked, dead_letter, tries, lease_us, created_at,
                    done_at, tenant)
                  values (last_insert_rowid(), 1, 1, 'charge', 1, 0, 0, 0, 1, 1, ?1, 't')";
    let birth = stored.record.birth.0.cast_signed();
    for (name, done_at) in [("done", Some(1)), ("open", None)] {
        other.execute(call, params![busy.id.as_bytes(), birth, name]).expect("a call");
        other.execute(effect, params![done_at]).expect("an effect");
    }
    let twice = other.execute(call, params![busy.id.as_bytes(), birth, "open"]);
    assert!(twice.is_err(), "one effect of a name");
    subject.hands.advance(TICK);
    assert_eq!(reap_all(&*subject.store, ReapTarget::Records).await.removed, 1);
    assert!(load(&*subject.store, busy.id).await.is_some() && load(&*subject.store, free.id).await.is_none());
    other.execute("update ibid_effect set done_at = 1", []).expect("it is done");
    assert_eq!(reap_all(&*subject.store, ReapTarget::Records).await.removed, 1);
    assert_eq!(one::<i64>(&other, "select count(*) from ibid_effect"), 2, "effects outlive their record");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_application_may_write_on_its_own_connections() {
    let subject = sqlite();
    subject.file.other_connection().execute_batch(PAYMENT).expect("a table is made");
    let names: Arc<Vec<TestRecord>> = Arc::new((0..200).map(|_| TestRecord::fresh()).collect());
    let begins = names.iter().map(|name| insert(name, draft(name, State::InProgress))).collect();
    commit_all(&*subject.store, begins).await;
    let shoppers: Vec<_> = (0..2)
        .map(|shopper| {
            let (file, names) = (subject.file.clone(), names.clone());
            std::thread::spawn(move || pay(&file, names.iter().skip(shopper).step_by(2)))
        })
        .collect();
    let more: Vec<TestRecord> = (0..100).map(|_| TestRecord::fresh()).collect();
    for name in &more {
        put(&*subject.store, &insert(name, draft(name, State::InProgress))).await;
    }
    shoppers.into_iter().for_each(|shopper| shopper.join().expect("all is paid"));
    let theirs = subject.file.other_connection();
    assert_eq!(
        one::<i64>(
            &theirs,
            "select count(*) from payment join ibid_record on ibid_record.id = payment.record"
        ),
        200
    );
    assert_eq!(one::<i64>(&theirs, "select count(*) from ibid_record"), 300);
}

/// Makes one payment per name, in a transaction that first takes the write lock and reads the record.
fn pay<'n>(file: &File, names: impl Iterator<Item = &'n TestRecord>) {
    let connection = file.other_connection();
    connection.busy_timeout(Duration::from_secs(30)).expect("a patient connection");
    connection.pragma_update(None, "foreign_keys", true).expect("a strict connection");
    for name in names {
        connection.execute_batch("begin immediate").expect("the lock comes in time");
        let mut check =
            connection.prepare_cached("select count from ibid_record where id = ?1").expect("a query");
        assert_eq!(check.query_row([name.id.as_bytes()], |row| row.get::<_, i64>(0)), Ok(1));
        connection
            .execute("insert into payment (record, cents) values (?1, 1)", [name.id.as_bytes()])
            .expect("a payment is made");
        connection.execute_batch("commit").expect("it is committed");
    }
}

/// A draft that may be removed as soon as the clock moves.
fn going(name: &TestRecord) -> Draft {
    Draft { purge_in: Some(Duration::ZERO), ..draft(name, State::Completed) }
}
