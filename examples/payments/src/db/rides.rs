//! Rides: a row that is filled in phase by phase.

use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};
use uuid::Uuid;

use super::payments::Settled;
use super::{Db, DbError, Tx};
use crate::account::Account;
use crate::input::NewRide;

/// A ride as its account sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ride {
    /// `ride_` and 32 hex digits.
    pub id: String,
    /// Who rides and pays.
    pub customer_id: String,
    /// From where.
    pub origin: String,
    /// Where to.
    pub destination: String,
    /// In the smallest unit of the currency.
    pub amount_cents: i64,
    /// ISO 4217.
    pub currency: String,
    /// `pending`, `succeeded` or `failed`.
    pub status: String,
    /// The processor's name for the charge.
    pub charge_id: Option<String>,
    /// The receipt, once it is written.
    pub receipt_id: Option<String>,
    /// Milliseconds since 1970, by the database's clock.
    pub created_at: i64,
}

/// An id that sorts by its time.
pub fn new_ride_id() -> String {
    format!("{RIDE_PREFIX}{}", Uuid::now_v7().simple())
}

/// Whether this could be an id of a ride. What could not is not asked of the database.
pub fn is_ride_id(text: &str) -> bool {
    super::is_id(text, RIDE_PREFIX)
}

/// An id of a receipt.
pub fn new_receipt_id() -> String {
    format!("rcpt_{}", Uuid::now_v7().simple())
}

impl Tx {
    /// A ride that is still to be charged, for the record of the request that booked it.
    pub async fn insert_ride(
        &mut self,
        id: &str,
        account: &Account,
        ride: &NewRide,
        record_id: Option<&[u8]>,
    ) -> Result<(), DbError> {
        let sql = include_str!("sql/ride_insert.sql");
        let inserted = super::on_tx!(self, connection => sqlx::query(sql)
            .bind(id)
            .bind(account.name())
            .bind(&ride.payment.customer_id)
            .bind(&ride.origin)
            .bind(&ride.destination)
            .bind(ride.payment.amount_cents)
            .bind(&ride.payment.currency)
            .bind(record_id)
            .execute(connection)
            .await
            .map(drop));
        inserted.map_err(DbError::of("insert a ride"))
    }

    /// How the charge of a ride ended; `false` if it had ended before, and then nothing changes.
    pub async fn settle_ride(
        &mut self,
        id: &str,
        settled: Settled,
        charge_id: Option<&str>,
    ) -> Result<bool, DbError> {
        let sql = include_str!("sql/ride_settle.sql");
        let changed = super::on_tx!(self, connection => sqlx::query(sql)
            .bind(id)
            .bind(settled.word())
            .bind(charge_id)
            .execute(connection)
            .await
            .map(|done| done.rows_affected()));
        changed.map(|rows| rows > 0).map_err(DbError::of("settle a ride"))
    }

    /// The receipt of a ride that is paid; `false` if it has one already or is not paid.
    pub async fn receipt_ride(&mut self, id: &str, receipt_id: &str) -> Result<bool, DbError> {
        let sql = include_str!("sql/ride_receipt.sql");
        let changed = super::on_tx!(self, connection => sqlx::query(sql)
            .bind(id)
            .bind(receipt_id)
            .execute(connection)
            .await
            .map(|done| done.rows_affected()));
        changed.map(|rows| rows > 0).map_err(DbError::of("write a receipt"))
    }
}

impl Db {
    /// One ride, if it is the account's.
    pub async fn ride(&self, account: &Account, id: &str) -> Result<Option<Ride>, DbError> {
        let sql = include_str!("sql/ride_show.sql");
        let found = super::on_db!(self, pool => sqlx::query_as(sql)
            .bind(id)
            .bind(account.name())
            .fetch_optional(pool)
            .await);
        found.map_err(DbError::of("read a ride"))
    }
}

impl<'r, R> FromRow<'r, R> for Ride
where
    R: Row,
    for<'a> &'a str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> Result<Ride, sqlx::Error> {
        Ok(Ride {
            id: row.try_get("id")?,
            customer_id: row.try_get("customer_id")?,
            origin: row.try_get("origin")?,
            destination: row.try_get("destination")?,
            amount_cents: row.try_get("amount_cents")?,
            currency: row.try_get("currency")?,
            status: row.try_get("status")?,
            charge_id: row.try_get("charge_id")?,
            receipt_id: row.try_get("receipt_id")?,
            created_at: row.try_get("created_at")?,
        })
    }
}

const RIDE_PREFIX: &str = "ride_";
