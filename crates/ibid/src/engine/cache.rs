//! Completed records of this process, bounded in bytes. A completed answer never changes, so it may be kept; absence
//! and `in_progress` never are.

use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use foldhash::fast::RandomState;
use ibid_core::record::{Record, State};
use ibid_core::response::Response;
use ibid_core::scope::RecordId;
use ibid_core::time::Timestamp;
use quick_cache::Weighter;
use quick_cache::sync::Cache as QuickCache;

/// A completed record and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Cached {
    pub(crate) record: Arc<Record>,
    pub(crate) response: Arc<Response>,
    /// Taken before the record was read, so that what has passed since is never counted too short.
    read_at: Instant,
    /// The store's clock when it was read.
    now: Timestamp,
}

pub(crate) struct Cache {
    kept: QuickCache<RecordId, Cached, Weight, RandomState>,
    ttl: Duration,
}

impl Cache {
    pub(crate) fn new(bytes_max: u64, ttl: Duration) -> Cache {
        let items = (bytes_max / ENTRY_BYTES as u64).clamp(16, 1 << 20) as usize;
        Cache {
            kept: QuickCache::with(items, bytes_max, Weight, RandomState::default(), Default::default()),
            ttl,
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The completed record under this id and the time it is now, unless it is too old to be trusted.
    pub(crate) fn get(&self, id: &RecordId) -> Option<(Cached, Timestamp)> {
        let cached = self.kept.get(id)?;
        let age = cached.read_at.elapsed();
        let now = cached.now.after(age);
        if age >= self.ttl || cached.record.is_expired(now) {
            self.kept.remove(id);
            return None;
        }
        Some((cached, now))
    }

    /// Trusts what it has under this id no longer.
    pub(crate) fn forget(&self, id: &RecordId) {
        self.kept.remove(id);
    }

    /// Keeps a completed record; anything else is left alone.
    pub(crate) fn put(
        &self,
        record: &Arc<Record>,
        response: &Arc<Response>,
        read_at: Instant,
        now: Timestamp,
    ) {
        if record.state != State::Completed || record.flags.not_retained {
            return;
        }
        let cached = Cached { record: record.clone(), response: response.clone(), read_at, now };
        self.kept.insert(record.id, cached);
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<RecordId, Cached> for Weight {
    fn weight(&self, _: &RecordId, cached: &Cached) -> u64 {
        let lines: usize =
            cached.response.headers.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
        (ENTRY_BYTES + lines + cached.response.body.len()) as u64
    }
}

/// What an entry takes besides headers and body: record, identity and the cache's own links, rounded up.
const ENTRY_BYTES: usize = 1024;
