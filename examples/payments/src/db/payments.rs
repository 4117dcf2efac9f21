//! Payments as their account sees them. How they are made and settled is in `writes`.

use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};
use uuid::Uuid;

use super::{Db, DbError};
use crate::account::Account;

/// A payment as its account sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payment {
    /// `pay_` and 32 hex digits.
    pub id: String,
    /// Whose card.
    pub customer_id: String,
    /// In the smallest unit of the currency.
    pub amount_cents: i64,
    /// ISO 4217.
    pub currency: String,
    /// `pending`, `succeeded` or `failed`.
    pub status: String,
    /// The processor's name for the charge.
    pub charge_id: Option<String>,
    /// Milliseconds since 1970, by the database's clock.
    pub created_at: i64,
}

/// How a charge ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The money is taken.
    Succeeded,
    /// It is not, and will not be.
    Failed,
}

impl Settled {
    /// As it stands in the tables.
    pub fn word(self) -> &'static str {
        match self {
            Settled::Succeeded => "succeeded",
            Settled::Failed => "failed",
        }
    }
}

/// Which of a customer's payments to list.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// Whose payments.
    pub customer_id: &'a str,
    /// Those older than this id.
    pub before: Option<&'a str>,
    /// How many at most.
    pub limit: u32,
}

/// An id that sorts by its time, so that new rows lie together in the index.
pub fn new_payment_id() -> String {
    format!("{PAYMENT_PREFIX}{}", Uuid::now_v7().simple())
}

/// Whether this could be an id of a payment. What could not is not asked of the database.
pub fn is_payment_id(text: &str) -> bool {
    super::is_id(text, PAYMENT_PREFIX)
}

impl Db {
    /// One payment, if it is the account's.
    pub async fn payment(&self, account: &Account, id: &str) -> Result<Option<Payment>, DbError> {
        let sql = include_str!("sql/payment_show.sql");
        let found = super::on_db!(self, pool => sqlx::query_as(sql)
            .bind(id)
            .bind(account.name())
            .fetch_optional(pool)
            .await);
        found.map_err(DbError::of("read a payment"))
    }

    /// A customer's payments, newest first.
    pub async fn payments(&self, account: &Account, page: &Page<'_>) -> Result<Vec<Payment>, DbError> {
        let sql = include_str!("sql/payment_list.sql");
        let found = super::on_db!(self, pool => sqlx::query_as(sql)
            .bind(account.name())
            .bind(page.customer_id)
            .bind(page.before.unwrap_or(AFTER_ALL_IDS))
            .bind(i64::from(page.limit))
            .fetch_all(pool)
            .await);
        found.map_err(DbError::of("list payments"))
    }
}

impl<'r, R> FromRow<'r, R> for Payment
where
    R: Row,
    for<'a> &'a str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> Result<Payment, sqlx::Error> {
        Ok(Payment {
            id: row.try_get("id")?,
            customer_id: row.try_get("customer_id")?,
            amount_cents: row.try_get("amount_cents")?,
            currency: row.try_get("currency")?,
            status: row.try_get("status")?,
            charge_id: row.try_get("charge_id")?,
            created_at: row.try_get("created_at")?,
        })
    }
}

const PAYMENT_PREFIX: &str = "pay_";

/// Ids are `pay_` and hex digits, which come before this byte by byte.
const AFTER_ALL_IDS: &str = "pay_g";
