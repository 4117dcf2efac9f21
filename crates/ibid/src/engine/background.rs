//! Writes that outlive their caller: ends of attempts, and given-up begins. Each kind is bounded by count and bytes, and a
//! shutdown waits for both.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;

use super::drain::{Drain, DrainGuard};

/// Spawns background writes and bounds them.
pub(crate) struct BackgroundWrites {
    /// The runtime of the engine. The thread that drops an attempt may be outside of every runtime.
    runtime: Handle,
    drain: Drain,
    /// Finishes and releases. Some hold a response that only this process has.
    ends: Arc<QueuedWrites>,
    /// Begins that were given up. There may be one for each request of the first seconds of an outage, so they are counted
    /// apart: they must not push out a finish.
    give_ups: Arc<QueuedWrites>,
}

/// The writes of one kind.
#[derive(Default)]
struct QueuedWrites {
    count: AtomicUsize,
    bytes: AtomicUsize,
}

impl BackgroundWrites {
    pub(super) fn new(runtime: Handle, drain: Drain) -> BackgroundWrites {
        BackgroundWrites { runtime, drain, ends: Arc::default(), give_ups: Arc::default() }
    }

    /// Spawns the write of an attempt's end that holds `bytes`. The write is counted before this returns, so that a shutdown
    /// does not miss it.
    ///
    /// Past the bounds the write is dropped. Its lease then lapses, and the record becomes `unknown` by itself.
    pub(crate) fn spawn_end(&self, bytes: usize, write: impl Future<Output = ()> + Send + 'static) {
        self.spawn(&self.ends, bytes, write);
    }

    /// Spawns the write over a begin that was given up, whose request holds `bytes`. Past the bounds it is dropped, and the
    /// begin lapses if it was written.
    pub(super) fn spawn_give_up(&self, bytes: usize, write: impl Future<Output = ()> + Send + 'static) {
        self.spawn(&self.give_ups, bytes, write);
    }

    fn spawn(
        &self,
        queued: &Arc<QueuedWrites>,
        bytes: usize,
        write: impl Future<Output = ()> + Send + 'static,
    ) {
        let Some(slot) = self.slot(queued, bytes) else { return };
        // Not joined. A runtime that shuts down drops it, and the lease lapses.
        drop(self.runtime.spawn(async move {
            write.await;
            drop(slot);
        }));
    }

    fn slot(&self, queued: &Arc<QueuedWrites>, size: usize) -> Option<WriteSlot> {
        let count = queued.count.fetch_add(1, Ordering::SeqCst) + 1;
        let bytes = queued.bytes.fetch_add(size, Ordering::SeqCst) + size;
        let slot = WriteSlot { queued: queued.clone(), size, _guard: self.drain.track_write() };
        if count > WRITES_MAX || bytes > BYTES_MAX {
            tracing::error!(
                queued = count,
                bytes,
                "too many writes wait for the store; one is dropped, and its lease will lapse"
            );
            return None;
        }
        Some(slot)
    }
}

/// The share of one background write in the bounds.
struct WriteSlot {
    queued: Arc<QueuedWrites>,
    size: usize,
    /// Dropped last, so that the share is given back before a shutdown continues.
    _guard: DrainGuard,
}

impl Drop for WriteSlot {
    fn drop(&mut self) {
        self.queued.count.fetch_sub(1, Ordering::SeqCst);
        self.queued.bytes.fetch_sub(self.size, Ordering::SeqCst);
    }
}

/// Background writes of one kind that may wait for a lost store: one for each connection at the default connection cap, and
/// some to spare.
const WRITES_MAX: usize = 16_384;

/// Bytes of responses and requests in background writes of one kind: what a small machine can spare during an outage.
const BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn given_up_begins_push_out_no_finish() {
        let writes = BackgroundWrites::new(Handle::current(), Drain::default());
        for _ in 0..WRITES_MAX + 10 {
            writes.spawn_give_up(0, pending());
        }
        writes.spawn_give_up(BYTES_MAX, pending());
        let (done, is_done) = oneshot::channel();
        writes.spawn_end(BYTES_MAX, async move { done.send(()).expect("the test listens") });
        is_done.await.expect("it was not dropped");
    }

    #[tokio::test]
    async fn writes_past_either_bound_are_dropped() {
        let writes = BackgroundWrites::new(Handle::current(), Drain::default());
        assert!(writes.slot(&writes.ends, BYTES_MAX + 1).is_none());
        let first = writes.slot(&writes.ends, BYTES_MAX).expect("room again");
        assert!(writes.slot(&writes.ends, 1).is_none());
        drop(first);
        let all: Vec<_> = (0..WRITES_MAX).map(|_| writes.slot(&writes.ends, 0).expect("room")).collect();
        assert!(writes.slot(&writes.ends, 0).is_none());
        drop(all);
        assert!(writes.slot(&writes.ends, 0).is_some());
    }
}
