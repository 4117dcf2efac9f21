//! Rows of a copy, out of the database and into it.

use ibid_core::store::copy::{CopyPart, CopyRow, SettingFence};
use ibid_core::store::{BoxFuture, CopyStore, Cursor, Page, StoreError};
use ibid_core::time::Timestamp;

use super::read::get;
use super::{KIND, PostgresCore};
use crate::record_sql::copy;

impl CopyStore for PostgresCore {
    fn clock(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        Box::pin(async move {
            let rows = self.ask(OP, include_str!("sql/now.sql"), &[]).await?;
            let row = rows.first().ok_or_else(|| StoreError::transient(KIND, OP, "no answer"))?;
            get(OP, row, 0).map(Timestamp::from_micros)
        })
    }

    fn export(
        &self,
        part: CopyPart,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<CopyRow>, StoreError>> {
        Box::pin(copy::export(self, part, after, limit))
    }

    fn check(&self, rows: Vec<CopyRow>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(copy::check(self, rows))
    }

    fn import(&self, fence: SettingFence, rows: Vec<CopyRow>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(copy::import(self, fence, rows))
    }
}

const OP: &str = "read the clock";
