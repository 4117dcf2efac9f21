//! A cache of completed records, bounded by bytes. The response of a completed record never changes, so it may be cached.
//! Absence and `in_progress` are never cached.

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

/// A completed record and its response.
#[derive(Clone, Debug)]
pub(crate) struct CachedResponse {
    pub(crate) record: Arc<Record>,
    pub(crate) response: Arc<Response>,
    /// An instant from before the record was read, so that its age is never taken for less than it is.
    read_at: Instant,
    /// The store's time when the record was read.
    now: Timestamp,
}

pub(crate) struct Cache {
    entries: QuickCache<RecordId, CachedResponse, Weight, RandomState>,
    ttl: Duration,
}

impl Cache {
    pub(crate) fn new(bytes_max: u64, ttl: Duration) -> Cache {
        let items = (bytes_max / ENTRY_BYTES as u64).clamp(16, 1 << 20) as usize;
        Cache {
            entries: QuickCache::with(items, bytes_max, Weight, RandomState::default(), Default::default()),
            ttl,
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the completed record under this id and the store's time now, unless the entry is older than the TTL or the
    /// record has expired.
    pub(crate) fn get(&self, id: &RecordId) -> Option<(CachedResponse, Timestamp)> {
        let cached = self.entries.get(id)?;
        let age = cached.read_at.elapsed();
        let now = cached.now.after(age);
        if age >= self.ttl || cached.record.is_expired(now) {
            self.entries.remove(id);
            return None;
        }
        Some((cached, now))
    }

    /// Removes the entry of a record.
    pub(crate) fn forget(&self, id: &RecordId) {
        self.entries.remove(id);
    }

    /// Caches a completed record whose response is retained, and ignores any other.
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
        let cached = CachedResponse { record: record.clone(), response: response.clone(), read_at, now };
        self.entries.insert(record.id, cached);
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<RecordId, CachedResponse> for Weight {
    fn weight(&self, _: &RecordId, cached: &CachedResponse) -> u64 {
        let lines: usize =
            cached.response.headers.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
        (ENTRY_BYTES + lines + cached.response.body.len()) as u64
    }
}

/// Bytes of an entry besides headers and body: record, identity and the cache's own links, rounded up.
const ENTRY_BYTES: usize = 1024;
