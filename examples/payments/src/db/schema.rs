//! Makes the tables that are not there yet, in one transaction, one node at a time. They refer to ibid's records, so its
//! store must have been opened before.

use sqlx::postgres::PgPool;
use sqlx::sqlite::SqlitePool;

/// `create … if not exists` alone is not enough here: two at once can both find nothing, and one then fails.
pub(super) async fn postgres(pool: &PgPool) -> Result<(), sqlx::Error> {
    let mut tx = pool.begin().await?;
    sqlx::query(include_str!("sql/postgres/lock.sql")).bind(SCHEMA_LOCK).execute(&mut *tx).await?;
    for statement in [
        include_str!("sql/postgres/payment.sql"),
        include_str!("sql/payment_by_customer.sql"),
        include_str!("sql/payment_by_record.sql"),
        include_str!("sql/postgres/ride.sql"),
        include_str!("sql/ride_by_record.sql"),
    ] {
        sqlx::query(statement).execute(&mut *tx).await?;
    }
    tx.commit().await
}

/// The write lock is taken first, so that nobody else looks before all of it is there.
pub(super) async fn sqlite(pool: &SqlitePool) -> Result<(), sqlx::Error> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    for statement in [
        include_str!("sql/sqlite/payment.sql"),
        include_str!("sql/payment_by_customer.sql"),
        include_str!("sql/payment_by_record.sql"),
        include_str!("sql/sqlite/ride.sql"),
        include_str!("sql/ride_by_record.sql"),
    ] {
        sqlx::query(statement).execute(&mut *tx).await?;
    }
    tx.commit().await
}

/// `payments` in ASCII: nobody else in the database takes this lock by chance.
const SCHEMA_LOCK: i64 = 0x7061_796d_656e_7473;
