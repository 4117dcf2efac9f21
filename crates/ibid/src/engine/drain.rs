//! Counts what a shutdown waits for: begins in flight, live attempts and background writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The count of one engine. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Drain(Arc<DrainCount>);

#[derive(Default)]
struct DrainCount {
    count: AtomicUsize,
    /// Notified when the count reaches zero.
    emptied: Notify,
}

impl Drain {
    /// Counts a begin, an attempt or a background write until the guard is dropped.
    pub(crate) fn track(&self) -> DrainGuard {
        self.0.count.fetch_add(1, Ordering::SeqCst);
        DrainGuard(self.0.clone())
    }

    /// Waits until nothing is counted any more.
    pub(super) async fn wait_until_empty(&self) {
        loop {
            // Created before the count is read, so that no notification is missed.
            let emptied = self.0.emptied.notified();
            if self.0.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            emptied.await;
        }
    }
}

/// Keeps a begin, an attempt or a background write counted until it is dropped.
pub(crate) struct DrainGuard(Arc<DrainCount>);

impl Drop for DrainGuard {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.emptied.notify_waiters();
        }
    }
}
