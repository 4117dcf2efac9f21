//! Turns at the database for keys that are reserved inside a transaction: one at a time for each key, and a few in all.
//!
//! Whoever waits for a row of another node has a turn now and then, and holds nothing in between. It must not know any SQL.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ibid_core::scope::RecordId;
use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::backoff::Backoff;

/// The keys that this process is about to reserve inside a transaction.
#[derive(Debug)]
pub(crate) struct ReserveQueue {
    under_way: Mutex<HashMap<RecordId, Weak<tokio::sync::Mutex<()>>>>,
    /// For the first try of each, so that those who find another node's row leave connections to everybody else.
    reserving: Semaphore,
    /// For the later tries of those who found one: whoever comes with a fresh key never stands behind them.
    lingering: Semaphore,
}

/// The right to be the one of this process.
pub(super) type KeyLock = OwnedMutexGuard<()>;

/// The right to try once.
pub(super) type Turn<'a> = SemaphorePermit<'a>;

impl Default for ReserveQueue {
    fn default() -> Self {
        ReserveQueue {
            under_way: Mutex::default(),
            reserving: Semaphore::new(RESERVING_MAX),
            lingering: Semaphore::new(LINGERING_MAX),
        }
    }
}

impl ReserveQueue {
    /// Waits until nobody else of this process is at it.
    pub(super) async fn enter(&self, id: RecordId) -> KeyLock {
        let turn = {
            let mut under_way = self.under_way.lock();
            if under_way.len() >= SWEEP_LOCKS_AT {
                under_way.retain(|_, turn| turn.strong_count() > 0);
            }
            let turn = under_way.get(&id).and_then(Weak::upgrade).unwrap_or_default();
            under_way.insert(id, Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }

    /// The pauses between the tries of one request.
    pub(super) fn backoff() -> Backoff {
        Backoff::new(PAUSE_MIN, PAUSE_MAX)
    }

    /// A turn for a key that nobody may have; none within this time.
    pub(super) async fn first_turn(&self, patience: Duration) -> Option<Turn<'_>> {
        tokio::time::timeout(patience, self.reserving.acquire()).await.ok()?.ok()
    }

    /// Another turn, after a pause, for a key that another node has; none before `until`.
    pub(super) async fn another_turn(&self, until: Instant, backoff: &mut Backoff) -> Option<Turn<'_>> {
        let now = Instant::now();
        if now >= until {
            return None;
        }
        tokio::time::sleep_until(until.min(now + backoff.next())).await;
        tokio::time::timeout_at(until, self.lingering.acquire()).await.ok()?.ok()
    }
}

/// First tries at once: half of a usual pool, so that the other half works.
const RESERVING_MAX: usize = 8;

/// Later tries at once. A duplicate that waits for another node is in no hurry, and a small pool is not eaten by two
/// that come and go.
const LINGERING_MAX: usize = 2;

/// The first pause between two tries: what takes longer than one try takes about as long again.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// The longest: an answer that is there is given within a quarter of a second, unless many wait for a turn.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// When the map of flights is cleared of those that have landed.
const SWEEP_LOCKS_AT: usize = 1024;
