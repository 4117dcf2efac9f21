//! Counts what a shutdown waits for: begins in flight, live attempts and background writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The counters of one engine. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Drain(Arc<Counters>);

#[derive(Default)]
struct Counters {
    /// Live attempts, those whose client has gone included.
    attempts: AtomicUsize,
    /// Begins in flight, which may still become attempts.
    begins: AtomicUsize,
    /// Background writes that wait for the store.
    writes: AtomicUsize,
    /// Notified when a counter reaches zero.
    emptied: Notify,
}

impl Drain {
    /// Counts an attempt until the guard is dropped.
    pub(super) fn track_attempt(&self) -> DrainGuard {
        self.track(|counters| &counters.attempts)
    }

    /// Counts a begin until the guard is dropped.
    pub(crate) fn track_begin(&self) -> DrainGuard {
        self.track(|counters| &counters.begins)
    }

    /// Counts a background write until the guard is dropped.
    pub(super) fn track_write(&self) -> DrainGuard {
        self.track(|counters| &counters.writes)
    }

    /// Waits until nothing is counted any more.
    pub(super) async fn wait_until_empty(&self) {
        loop {
            // Created before the counters are read, so that no notification is missed.
            let emptied = self.0.emptied.notified();
            let counters = [&self.0.attempts, &self.0.begins, &self.0.writes];
            if counters.iter().all(|counter| counter.load(Ordering::SeqCst) == 0) {
                return;
            }
            emptied.await;
        }
    }

    fn track(&self, counter: Counter) -> DrainGuard {
        counter(&self.0).fetch_add(1, Ordering::SeqCst);
        DrainGuard { counters: self.0.clone(), counter }
    }
}

type Counter = fn(&Counters) -> &AtomicUsize;

/// Keeps a begin, an attempt or a background write counted until it is dropped.
pub(crate) struct DrainGuard {
    counters: Arc<Counters>,
    counter: Counter,
}

impl Drop for DrainGuard {
    fn drop(&mut self) {
        if (self.counter)(&self.counters).fetch_sub(1, Ordering::SeqCst) == 1 {
            self.counters.emptied.notify_waiters();
        }
    }
}
