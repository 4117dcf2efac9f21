//! Rows of a copy, out of the file and into it.

use ibid_core::store::copy::{CopyPart, CopyRow, SettingFence};
use ibid_core::store::{BoxFuture, CopyStore, Cursor, Page, StoreError};
use ibid_core::time::Timestamp;

use super::SqliteStore;
use crate::record_sql::copy;

impl CopyStore for SqliteStore {
    fn clock(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        Box::pin(std::future::ready(Ok(self.clock.now())))
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
