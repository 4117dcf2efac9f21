//! Runs outbox statements in a transaction on the store's connection, for callers without a database handle.

use ibid_core::effect::EffectFilter;
use ibid_core::store::{Store, StoreError};

use super::statements::{self, EffectPage};
pub(crate) use crate::record_sql::run;
use crate::record_sql::run_read;

/// Lists the effects that match `filter`, in outbox order. Returns `None` if the store has no outbox.
pub(crate) async fn list(store: &dyn Store, filter: EffectFilter) -> Result<Option<EffectPage>, StoreError> {
    let Some(sql) = store.sql() else { return Ok(None) };
    let now = sql.now();
    let list = run_read(sql, move |tx| Box::pin(async move { statements::list(tx, &filter, now).await }));
    list.await.map(Some)
}
