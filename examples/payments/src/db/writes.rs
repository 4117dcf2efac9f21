//! What is written, always inside a transaction that ibid opened and ends: these rows are there exactly if the record
//! says so.

use sqlx::{PgConnection, SqliteConnection};

use super::DbError;
use super::payments::Settled;
use crate::account::Account;
use crate::input::{NewPayment, NewRide};

/// The statements that write, on the connection of an open transaction.
pub trait Writes: Send {
    /// A payment that is still to be charged, for the record of the request that made it.
    fn insert_payment(
        &mut self,
        id: &str,
        account: &Account,
        payment: &NewPayment,
        record_id: Option<&[u8]>,
    ) -> impl Future<Output = Result<(), DbError>> + Send;

    /// How a payment ended; `false` if it had ended before, and then nothing changes.
    fn settle_payment(
        &mut self,
        id: &str,
        settled: Settled,
        charge_id: Option<&str>,
    ) -> impl Future<Output = Result<bool, DbError>> + Send;

    /// A ride that is still to be charged, for the record of the request that booked it.
    fn insert_ride(
        &mut self,
        id: &str,
        account: &Account,
        ride: &NewRide,
        record_id: Option<&[u8]>,
    ) -> impl Future<Output = Result<(), DbError>> + Send;

    /// How the charge of a ride ended; `false` if it had ended before, and then nothing changes.
    fn settle_ride(
        &mut self,
        id: &str,
        settled: Settled,
        charge_id: Option<&str>,
    ) -> impl Future<Output = Result<bool, DbError>> + Send;

    /// The receipt of a ride that is paid; `false` if it has one already or is not paid.
    fn receipt_ride(
        &mut self,
        id: &str,
        receipt_id: &str,
    ) -> impl Future<Output = Result<bool, DbError>> + Send;
}

/// Both drivers take the same words; only their types differ. With one database this is a plain `impl`.
macro_rules! writes_on {
    ($connection:ty) => {
        impl Writes for $connection {
            async fn insert_payment(
                &mut self,
                id: &str,
                account: &Account,
                payment: &NewPayment,
                record_id: Option<&[u8]>,
            ) -> Result<(), DbError> {
                let inserted = sqlx::query(include_str!("sql/payment_insert.sql"))
                    .bind(id)
                    .bind(account.name())
                    .bind(&payment.customer_id)
                    .bind(payment.amount_cents)
                    .bind(&payment.currency)
                    .bind(record_id)
                    .execute(self);
                inserted.await.map(drop).map_err(DbError::of("insert a payment"))
            }

            async fn settle_payment(
                &mut self,
                id: &str,
                settled: Settled,
                charge_id: Option<&str>,
            ) -> Result<bool, DbError> {
                let changed = sqlx::query(include_str!("sql/payment_settle.sql"))
                    .bind(id)
                    .bind(settled.word())
                    .bind(charge_id)
                    .execute(self);
                let changed = changed.await.map_err(DbError::of("settle a payment"))?;
                Ok(changed.rows_affected() > 0)
            }

            async fn insert_ride(
                &mut self,
                id: &str,
                account: &Account,
                ride: &NewRide,
                record_id: Option<&[u8]>,
            ) -> Result<(), DbError> {
                let inserted = sqlx::query(include_str!("sql/ride_insert.sql"))
                    .bind(id)
                    .bind(account.name())
                    .bind(&ride.payment.customer_id)
                    .bind(&ride.origin)
                    .bind(&ride.destination)
                    .bind(ride.payment.amount_cents)
                    .bind(&ride.payment.currency)
                    .bind(record_id)
                    .execute(self);
                inserted.await.map(drop).map_err(DbError::of("insert a ride"))
            }

            async fn settle_ride(
                &mut self,
                id: &str,
                settled: Settled,
                charge_id: Option<&str>,
            ) -> Result<bool, DbError> {
                let changed = sqlx::query(include_str!("sql/ride_settle.sql"))
                    .bind(id)
                    .bind(settled.word())
                    .bind(charge_id)
                    .execute(self);
                let changed = changed.await.map_err(DbError::of("settle a ride"))?;
                Ok(changed.rows_affected() > 0)
            }

            async fn receipt_ride(&mut self, id: &str, receipt_id: &str) -> Result<bool, DbError> {
                let changed =
                    sqlx::query(include_str!("sql/ride_receipt.sql")).bind(id).bind(receipt_id).execute(self);
                let changed = changed.await.map_err(DbError::of("write a receipt"))?;
                Ok(changed.rows_affected() > 0)
            }
        }
    };
}

writes_on!(PgConnection);
writes_on!(SqliteConnection);
