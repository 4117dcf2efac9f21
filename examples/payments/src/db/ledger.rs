//! Our side of the books: every payment and ride, as the processor should have it.

use futures_util::TryStreamExt as _;
use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};

use super::{Db, DbError};

/// One line of our books.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booked {
    /// The payment or ride: the processor's `reference`.
    pub id: String,
    /// In the smallest unit of the currency.
    pub amount_cents: i64,
    /// ISO 4217.
    pub currency: String,
    /// `pending`, `succeeded` or `failed`.
    pub status: String,
    /// The processor's name for the charge, if it made one.
    pub charge_id: Option<String>,
}

impl Db {
    /// Gives every line to `each`, as the database reads them.
    pub async fn booked<E: From<DbError>>(
        &self,
        mut each: impl FnMut(Booked) -> Result<(), E>,
    ) -> Result<(), E> {
        let sql = include_str!("sql/ledger.sql");
        super::on_db!(self, pool => {
            let mut lines = sqlx::query_as::<_, Booked>(sql).fetch(pool);
            while let Some(line) = lines.try_next().await.map_err(DbError::of("read the books"))? {
                each(line)?;
            }
            Ok(())
        })
    }
}

impl<'r, R> FromRow<'r, R> for Booked
where
    R: Row,
    for<'a> &'a str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> Result<Booked, sqlx::Error> {
        Ok(Booked {
            id: row.try_get("id")?,
            amount_cents: row.try_get("amount_cents")?,
            currency: row.try_get("currency")?,
            status: row.try_get("status")?,
            charge_id: row.try_get("charge_id")?,
        })
    }
}
