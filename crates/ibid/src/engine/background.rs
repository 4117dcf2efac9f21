//! Writes that outlive their caller: queued finishes and releases. They are bounded by count and bytes, and a shutdown
//! waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::drain::{Drain, DrainGuard};

/// Spawns background writes and bounds them.
pub(crate) struct BackgroundWrites {
    drain: Drain,
    bytes: Arc<AtomicUsize>,
}

impl BackgroundWrites {
    pub(super) fn new(drain: Drain) -> BackgroundWrites {
        BackgroundWrites { drain, bytes: Arc::default() }
    }

    /// Spawns a write that holds `bytes` of response. The write is counted before this returns, so that a shutdown does not
    /// miss it.
    ///
    /// Past the bounds the write is dropped. Its lease then lapses, and the record becomes `unknown` by itself.
    pub(crate) fn spawn(&self, bytes: usize, write: impl Future<Output = ()> + Send + 'static) {
        let Some(slot) = self.slot(bytes) else { return };
        tokio::spawn(async move {
            write.await;
            drop(slot);
        });
    }

    fn slot(&self, size: usize) -> Option<WriteSlot> {
        let (guard, queued) = self.drain.track_write();
        let bytes = self.bytes.fetch_add(size, Ordering::SeqCst) + size;
        let slot = WriteSlot { bytes: self.bytes.clone(), size, _guard: guard };
        if queued > WRITES_MAX || bytes > BYTES_MAX {
            tracing::error!(
                queued,
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
    bytes: Arc<AtomicUsize>,
    size: usize,
    /// Dropped last, so that the bytes are given back before a shutdown continues.
    _guard: DrainGuard,
}

impl Drop for WriteSlot {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.size, Ordering::SeqCst);
    }
}

/// Background writes that may wait for a lost store: one for each connection at the default connection cap, and some to
/// spare.
const WRITES_MAX: usize = 16_384;

/// Bytes of responses in background writes: what a small machine can spare during an outage.
const BYTES_MAX: usize = 64 << 20;
