//! Transactions that the caller opened on its own connection.

use futures_util::FutureExt;
use ibid::transaction::rusqlite::RusqliteScopedTx;
use ibid::transaction::{OwnedTx, SqlFault};
use ibid_core::sql::Param;

use super::databases::TestDatabase;
use super::{execute, fault_of, number};

const TABLE: &str = "create table thing (id int8 primary key, n int8 not null)";
const INSERT: &str = "insert into thing (id, n) values ($1, 0)";
const COUNT: &str = "select count(*) from thing";

/// SQLite does the work at the first poll of the future, so a plain thread needs no runtime.
#[test]
fn rusqlite_needs_no_runtime() {
    let test_db = TestDatabase::sqlite();
    let mut connection = rusqlite::Connection::open(&test_db.at).unwrap();
    let mut tx = RusqliteScopedTx::begin(&mut connection).unwrap();
    execute(&mut tx, TABLE, &[]).now_or_never().unwrap().unwrap();
    execute(&mut tx, INSERT, &[Param::I64(1)]).now_or_never().unwrap().unwrap();
    tx.commit().now_or_never().unwrap().unwrap();
    let mut tx = RusqliteScopedTx::begin(&mut connection).unwrap();
    execute(&mut tx, INSERT, &[Param::I64(2)]).now_or_never().unwrap().unwrap();
    drop(tx);
    let mut tx = RusqliteScopedTx::begin(&mut connection).unwrap();
    assert_eq!(number(&mut tx, COUNT).now_or_never().unwrap(), 1);
}

/// SQLite rolls back by itself if the disk is full, for example; a later statement would be durable at once and alone.
#[test]
fn an_ended_rusqlite_transaction_takes_no_statements() {
    let test_db = TestDatabase::sqlite();
    let mut connection = rusqlite::Connection::open(&test_db.at).unwrap();
    connection.execute_batch("create table thing (id integer primary key, n integer not null)").unwrap();
    let mut tx = RusqliteScopedTx::begin(&mut connection).unwrap();
    tx.execute_batch("rollback").unwrap();
    let late = execute(&mut tx, INSERT, &[Param::I64(1)]).now_or_never().unwrap();
    assert_eq!(fault_of(late), Some(SqlFault::Wrong));
    assert_eq!(fault_of(tx.commit().now_or_never().unwrap()), Some(SqlFault::Wrong));
    let mut tx = RusqliteScopedTx::begin(&mut connection).unwrap();
    assert_eq!(number(&mut tx, COUNT).now_or_never().unwrap(), 0);
}

#[test]
fn rusqlite_does_not_roll_back_a_foreign_transaction() {
    let test_db = TestDatabase::sqlite();
    let mut connection = rusqlite::Connection::open(&test_db.at).unwrap();
    connection.execute_batch("begin; create table thing (id integer primary key, n integer)").unwrap();
    assert_eq!(fault_of(RusqliteScopedTx::begin(&mut connection)), Some(SqlFault::Wrong));
    connection.execute_batch("commit; select * from thing").unwrap();
}

/// A deferred transaction that has read can't write once another has: waiting would not help.
#[tokio::test]
async fn a_snapshot_that_is_too_old_means_again() {
    use ibid::transaction::sqlx_sqlite::SqlxSqliteTx;
    use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool};

    let test_db = TestDatabase::sqlite();
    let file = SqliteConnectOptions::new().filename(&test_db.at).create_if_missing(true);
    let pool = SqlitePool::connect_with(file.journal_mode(SqliteJournalMode::Wal)).await.unwrap();
    sqlx::query("create table thing (id integer primary key, n integer)").execute(&pool).await.unwrap();
    let mut ann = SqlxSqliteTx::from(pool.begin().await.unwrap());
    assert_eq!(number(&mut ann, COUNT).await, 0);
    let mut bob = SqlxSqliteTx::from(pool.begin().await.unwrap());
    execute(&mut bob, INSERT, &[Param::I64(1)]).await.unwrap();
    bob.commit().await.unwrap();
    assert_eq!(fault_of(execute(&mut ann, INSERT, &[Param::I64(2)]).await), Some(SqlFault::Serialization));
    ann.rollback().await.unwrap();
}

#[tokio::test]
async fn a_borrowed_tokio_postgres_transaction_behaves_the_same() {
    use ibid::transaction::tokio_postgres::BorrowedTx;

    let test_db = TestDatabase::postgres();
    let (mut client, connection) = tokio_postgres::connect(&test_db.at, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut tx = BorrowedTx::from(client.transaction().await.unwrap());
    execute(&mut tx, TABLE, &[]).await.unwrap();
    execute(&mut tx, INSERT, &[Param::I64(1)]).await.unwrap();
    tx.commit().await.unwrap();

    let mut tx = BorrowedTx::from(client.transaction().await.unwrap());
    execute(&mut tx, INSERT, &[Param::I64(2)]).await.unwrap();
    tx.rollback().await.unwrap();

    let mut tx = BorrowedTx::from(client.transaction().await.unwrap());
    execute(&mut tx, INSERT, &[Param::I64(2)]).await.unwrap();
    drop(tx);

    let mut tx = BorrowedTx::from(client.transaction().await.unwrap());
    execute(&mut tx, INSERT, &[Param::I64(2)]).await.unwrap();
    assert!(tx.batch_execute("select 1 / 0").await.is_err());
    assert_eq!(fault_of(tx.commit().await), Some(SqlFault::Wrong));

    let mut tx = BorrowedTx::from(client.transaction().await.unwrap());
    assert_eq!(number(&mut tx, COUNT).await, 1);
    tx.rollback().await.unwrap();
    drop(client);
    connection.await.unwrap().unwrap();
}
