//! Writes that outlive their caller: ends of attempts, and given-up begins. Each kind is bounded by count and bytes, in all and
//! per tenant, and a shutdown waits for both.

use ibid_core::scope::Tenant;
use tokio::runtime::Handle;

use super::drain::{Drain, DrainGuard};
use super::tenant_bound::{CrowdedBy, TenantBound, TenantPermit};

/// Spawns background writes and bounds them.
pub(crate) struct BackgroundWrites {
    /// The runtime of the engine. The thread that drops an attempt may be outside of every runtime.
    runtime: Handle,
    drain: Drain,
    /// Finishes and releases. Some hold a response that only this process has.
    ends: WriteBounds,
    /// Begins that were given up. There may be one for each request of the first seconds of an outage, so they are counted
    /// apart: they must not push out a finish.
    give_ups: WriteBounds,
}

/// The bounds of one kind of writes.
struct WriteBounds {
    count: TenantBound,
    bytes: TenantBound,
}

impl Default for WriteBounds {
    fn default() -> Self {
        WriteBounds { count: TenantBound::new(WRITES_MAX), bytes: TenantBound::new(BYTES_MAX) }
    }
}

impl BackgroundWrites {
    pub(super) fn new(runtime: Handle, drain: Drain) -> BackgroundWrites {
        BackgroundWrites { runtime, drain, ends: WriteBounds::default(), give_ups: WriteBounds::default() }
    }

    /// Spawns the write of an attempt's end that holds `bytes`. The write is counted before this returns, so that a shutdown
    /// does not miss it.
    ///
    /// Past the bounds the write is dropped. Its lease then lapses, and the record becomes `unknown` by itself.
    pub(crate) fn spawn_end(
        &self,
        tenant: &Tenant,
        bytes: usize,
        write: impl Future<Output = ()> + Send + 'static,
    ) {
        self.spawn(&self.ends, tenant, bytes, write);
    }

    /// Spawns the write over a begin that was given up, whose request holds `bytes`. Past the bounds it is dropped, and the
    /// begin lapses if it was written.
    pub(super) fn spawn_give_up(
        &self,
        tenant: &Tenant,
        bytes: usize,
        write: impl Future<Output = ()> + Send + 'static,
    ) {
        self.spawn(&self.give_ups, tenant, bytes, write);
    }

    fn spawn(
        &self,
        bounds: &WriteBounds,
        tenant: &Tenant,
        bytes: usize,
        write: impl Future<Output = ()> + Send + 'static,
    ) {
        let slot = match self.slot(bounds, tenant, bytes) {
            Ok(slot) => slot,
            Err(by) => {
                let (queued, queued_bytes) = (bounds.count.units_taken(), bounds.bytes.units_taken());
                tracing::error!(
                    ?by,
                    queued,
                    queued_bytes,
                    bytes,
                    "too many writes wait for the store; one is dropped, and its lease will lapse"
                );
                return;
            }
        };
        // Not joined. A runtime that shuts down drops it, and the lease lapses.
        drop(self.runtime.spawn(async move {
            write.await;
            drop(slot);
        }));
    }

    fn slot(&self, bounds: &WriteBounds, tenant: &Tenant, bytes: usize) -> Result<WriteSlot, CrowdedBy> {
        let (count, bytes) = (bounds.count.take(tenant, 1)?, bounds.bytes.take(tenant, bytes)?);
        Ok(WriteSlot { _count: count, _bytes: bytes, _guard: self.drain.track() })
    }
}

/// The share of one background write in the bounds.
struct WriteSlot {
    _count: TenantPermit,
    _bytes: TenantPermit,
    /// Dropped last, so that the share is given back before a shutdown continues.
    _guard: DrainGuard,
}

/// Background writes of one kind that may wait for a lost store: one for each connection at the default connection cap, and
/// some to spare. One tenant may have half of them.
const WRITES_MAX: usize = 16_384;

/// Bytes of responses and requests in background writes of one kind: what a small machine can spare during an outage. One tenant
/// may have half of them.
const BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn given_up_begins_push_out_no_finish() {
        let writes = BackgroundWrites::new(Handle::current(), Drain::default());
        let tenant = Tenant::only();
        for _ in 0..WRITES_MAX + 10 {
            writes.spawn_give_up(&tenant, 0, pending());
        }
        writes.spawn_give_up(&tenant, BYTES_MAX, pending());
        let (done, is_done) = oneshot::channel();
        writes.spawn_end(&tenant, BYTES_MAX, async move { done.send(()).expect("the test listens") });
        is_done.await.expect("it was not dropped");
    }

    #[tokio::test]
    async fn writes_past_either_bound_are_dropped() {
        let writes = BackgroundWrites::new(Handle::current(), Drain::default());
        let slot = |bytes| writes.slot(&writes.ends, &Tenant::only(), bytes).ok();
        assert!(slot(BYTES_MAX + 1).is_none());
        let first = slot(BYTES_MAX).expect("room again");
        assert!(slot(1).is_none());
        drop(first);
        let all: Vec<_> = (0..WRITES_MAX).map(|_| slot(0).expect("room")).collect();
        assert!(slot(0).is_none());
        drop(all);
        assert!(slot(0).is_some());
    }

    #[tokio::test]
    async fn one_tenants_writes_push_out_no_others() {
        let writes = BackgroundWrites::new(Handle::current(), Drain::default());
        let tenant = |name| Tenant::new(name).expect("a good name");
        let slot = |tenant, bytes| writes.slot(&writes.ends, tenant, bytes).ok();
        let (greedy, other) = (tenant("greedy"), tenant("other"));
        let large = slot(&greedy, BYTES_MAX / 2).expect("room");
        assert!(slot(&greedy, 1).is_none(), "it has half of the bytes");
        let others = slot(&other, BYTES_MAX / 2).expect("the other half");
        drop((large, others));
        let many: Vec<_> = (0..WRITES_MAX / 2).map(|_| slot(&greedy, 0).expect("room")).collect();
        assert!(slot(&greedy, 0).is_none(), "it has half of the writes");
        assert!(slot(&other, 0).is_some());
        drop(many);
    }
}
