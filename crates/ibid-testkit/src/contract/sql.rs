//! Work in a transaction of the store's own database. What callers' transactions do to records is not checked here: their
//! statements belong to the drivers' adapters.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::policy::Policy;
use ibid_core::sql::{SqlError, SqlTx, Statement, Type};
use ibid_core::store::{BoxFuture, SqlStore, StoreError, Work};
use tokio::sync::oneshot;

use super::StoreUnderTest;

/// Work that returns an error leaves nothing behind, and its caller learns of it.
pub async fn work_is_committed_unless_it_fails(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let sql = store.sql().expect("the suite runs on a SQL store");
    run(sql, |tx| Box::pin(tx.execute(&CREATE, &[]))).await.expect("a table");
    run(sql, |tx| {
        Box::pin(async move {
            tx.execute(&ADD, &[]).await?;
            Err(SqlError::mismatch("for a test"))
        })
    })
    .await
    .expect_err("the work failed");
    assert_eq!(rows(sql).await, 0, "it was rolled back");
    run(sql, |tx| Box::pin(tx.execute(&ADD, &[]))).await.expect("a row");
    assert_eq!(rows(sql).await, 1, "it was committed");
    run(sql, |tx| Box::pin(tx.execute(&DROP, &[]))).await.expect("the table goes");
}

/// Equal policies have one number, and others have another, however often they are asked for.
pub async fn a_policy_has_one_number(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let sql = store.sql().expect("the suite runs on a SQL store");
    let of = |secs| Arc::new(Policy::default().with(|policy| policy.lease = Duration::from_secs(secs)));
    let number = async |secs| sql.policy(of(secs)).await.expect("it is stored");
    let (first, second) = (number(4_001).await, number(4_002).await);
    assert_ne!(first, second);
    assert_eq!((number(4_001).await, number(4_002).await), (first, second));
}

/// A caller that waits for the transactions before its mark does not wait forever.
pub async fn a_mark_is_settled_when_no_transaction_is_open(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let sql = store.sql().expect("the suite runs on a SQL store");
    let mark = sql.transaction_mark().await.expect("a mark");
    // Transactions of other databases on the same server may be open at the moment.
    while !sql.is_settled_before(mark).await.expect("the store answers") {
        tokio::task::yield_now().await;
    }
}

async fn rows(sql: &dyn SqlStore) -> i64 {
    let (reply, count) = oneshot::channel();
    run(sql, |tx| {
        Box::pin(async move {
            let row = tx.query(&COUNT, &[]).await?.pop();
            let count = row.ok_or_else(|| SqlError::mismatch("a count"))?.i64()?;
            reply.send(count).map_err(|_| SqlError::mismatch("a listener"))
        })
    })
    .await
    .expect("it is counted");
    count.await.expect("it was sent")
}

async fn run(
    sql: &dyn SqlStore,
    work: impl for<'a> FnOnce(&'a mut dyn SqlTx) -> BoxFuture<'a, Result<(), SqlError>> + Send + 'static,
) -> Result<(), StoreError> {
    let work: Work = Box::new(work);
    sql.work(work).await
}

static CREATE: Statement = statement("create table ibid_contract_probe (n bigint)");
static ADD: Statement = statement("insert into ibid_contract_probe values (1)");
static DROP: Statement = statement("drop table ibid_contract_probe");
static COUNT: Statement =
    Statement { text: "select count(*) from ibid_contract_probe", columns: &[Type::I64] };

const fn statement(text: &'static str) -> Statement {
    Statement { text, columns: &[] }
}
