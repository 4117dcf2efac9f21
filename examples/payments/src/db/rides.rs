//! Rides as their account sees them. The row is filled in phase by phase, by `writes`.

use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};
use uuid::Uuid;

use super::{Db, DbError};
use crate::account::Account;

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
