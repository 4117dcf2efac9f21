//! A store in memory for copies that are interrupted at a call.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ibid::store::memory::MemoryStore;
use ibid_core::change::{Change, Commit, StoredRecord};
use ibid_core::evidence::EvidenceStore;
use ibid_core::reap::{ReapStep, ReapTarget};
use ibid_core::record::{State, Version};
use ibid_core::scope::RecordId;
use ibid_core::store::copy::{CopyPart, CopyRow, SettingFence};
use ibid_core::store::{
    BodyStore, BoxFuture, BrowseStore, CopyStore, Cursor, Page, RenewOutcome, SetOutcome, Store, StoreError,
    StoreFacts,
};
use ibid_core::time::Timestamp;
use tokio::sync::Notify;

use super::{AFTER_IMPORT, BEFORE_IMPORT, TwoStores};

/// A store in memory whose calls are counted, fail or wait as the test wants.
pub(super) struct StepStore {
    pub(super) inner: Arc<MemoryStore>,
    pub(super) world: Arc<TwoStores>,
    pub(super) gate: Option<Arc<Gate>>,
}

impl StepStore {
    /// Waits at the gate, if this is the call that it is for.
    async fn pass_gate(&self, point: &str) {
        if let Some(gate) = self.gate.as_ref().filter(|gate| gate.point == point) {
            gate.is_reached.notify_one();
            gate.opens.notified().await;
        }
    }

    /// Makes one call.
    async fn call<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let is_lost = self.world.step().await?;
        let result = call.await;
        self.world.assert_one_open();
        match is_lost {
            true => Err(StoreError::transient("memory", "anything", "the reply is lost")),
            false => result,
        }
    }
}

impl Store for StepStore {
    fn facts(&self) -> StoreFacts {
        self.inner.facts()
    }

    fn load(&self, id: RecordId) -> BoxFuture<'_, Result<Option<StoredRecord>, StoreError>> {
        Box::pin(self.call(self.inner.load(id)))
    }

    fn commit(
        &self,
        change: Arc<Change>,
        send_by: Option<Instant>,
    ) -> BoxFuture<'_, Result<Commit, StoreError>> {
        Box::pin(async move { self.call(async { self.inner.commit(change, send_by).await }).await })
    }

    fn renew(
        &self,
        leases: Vec<(RecordId, Version)>,
    ) -> BoxFuture<'_, Result<Vec<RenewOutcome>, StoreError>> {
        Box::pin(async move { self.call(async { self.inner.renew(leases).await }).await })
    }

    fn due(
        &self,
        state: State,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        Box::pin(async move { self.call(async { self.inner.due(state, after, limit).await }).await })
    }

    fn reap(
        &self,
        target: ReapTarget,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<ReapStep, StoreError>> {
        Box::pin(async move { self.call(async { self.inner.reap(target, after, limit).await }).await })
    }

    fn setting(&self, name: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move { self.call(async { self.inner.setting(&name).await }).await })
    }

    fn compare_and_set(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> BoxFuture<'_, Result<SetOutcome, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            self.pass_gate(&name).await;
            self.call(async { self.inner.compare_and_set(&name, expected, value).await }).await
        })
    }

    fn bodies(&self) -> Option<&dyn BodyStore> {
        Store::bodies(&*self.inner)
    }

    fn browse(&self) -> Option<&dyn BrowseStore> {
        Store::browse(&*self.inner)
    }

    fn evidence(&self) -> Option<&dyn EvidenceStore> {
        Store::evidence(&*self.inner)
    }

    fn copy(&self) -> Option<&dyn CopyStore> {
        Some(self)
    }
}

impl CopyStore for StepStore {
    fn clock(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        Box::pin(async move { self.call(async { self.inner.clock().await }).await })
    }

    fn export(
        &self,
        part: CopyPart,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<CopyRow>, StoreError>> {
        Box::pin(async move { self.call(async { self.inner.export(part, after, limit).await }).await })
    }

    fn import(&self, fence: SettingFence, rows: Vec<CopyRow>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let has_records = rows.iter().any(|row| matches!(row, CopyRow::Record(_)));
            self.pass_gate(if has_records { BEFORE_IMPORT } else { "" }).await;
            let result = self.call(async { self.inner.import(fence, rows).await }).await;
            self.pass_gate(if has_records { AFTER_IMPORT } else { "" }).await;
            result
        })
    }
}

/// A point at which a copy waits: before it writes a setting of the target, or around a batch of records.
pub(super) struct Gate {
    point: &'static str,
    pub(super) is_reached: Notify,
    pub(super) opens: Notify,
}

impl Gate {
    pub(super) fn new(point: &'static str) -> Arc<Gate> {
        Arc::new(Gate { point, is_reached: Notify::new(), opens: Notify::new() })
    }
}
