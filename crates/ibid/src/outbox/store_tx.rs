//! Runs outbox statements in a transaction on the store's connection, for callers without a database handle.

use parking_lot::Mutex;
use std::sync::Arc;

use ibid_core::effect::EffectFilter;
use ibid_core::sql::{SqlError, SqlTx};
use ibid_core::store::{BoxFuture, SqlStore, Store, StoreError, Work};

use super::statements::{self, EffectPage};

/// Lists the effects that match `filter`, in outbox order. Returns `None` if the store has no outbox.
pub(crate) async fn list(store: &dyn Store, filter: EffectFilter) -> Result<Option<EffectPage>, StoreError> {
    let Some(sql) = store.sql() else { return Ok(None) };
    let now = sql.now();
    run(sql, move |tx| Box::pin(async move { statements::list(tx, &filter, now).await })).await.map(Some)
}

/// Runs `work` in one transaction and returns its result once the transaction has committed.
pub(crate) async fn run<T: Send + 'static>(
    store: &dyn SqlStore,
    work: impl for<'a> FnOnce(&'a mut dyn SqlTx) -> BoxFuture<'a, Result<T, SqlError>> + Send + 'static,
) -> Result<T, StoreError> {
    let result = Arc::new(Mutex::new(None));
    let slot = result.clone();
    let work: Work = Box::new(move |tx| {
        Box::pin(async move {
            let value = work(tx).await?;
            *slot.lock() = Some(value);
            Ok(())
        })
    });
    store.work(work).await?;
    let value = result.lock().take();
    value.ok_or_else(|| StoreError::lasting("sql", "work", "the store did not run the work"))
}
