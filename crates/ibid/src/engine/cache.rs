//! A cache of completed records, bounded by bytes. The response of a completed record never changes, so it may be cached.
//! Absence and `in_progress` are never cached.

use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

use bytes::Bytes;
use foldhash::fast::RandomState;
use ibid_core::record::Record;
use ibid_core::response::Response;
use ibid_core::scope::RecordId;
use ibid_core::time::Timestamp;
use quick_cache::Weighter;
use quick_cache::sync::Cache as QuickCache;

use super::Engine;

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

    /// Removes entries that [`Cache::get`] would not return any more: most records are never asked for again.
    fn remove_stale(&self) {
        self.entries.retain(|_, cached| self.time_of(cached).is_some());
    }

    /// Returns the store's time now as seen from an entry, or `None` if the entry may not be used any more.
    fn time_of(&self, cached: &CachedResponse) -> Option<Timestamp> {
        let age = cached.read_at.elapsed();
        let now = cached.now.after(age);
        (age < self.ttl && !cached.record.is_expired(now)).then_some(now)
    }

    /// Returns the completed record under this id and the store's time now, unless the entry is older than the TTL or the
    /// record has expired.
    pub(crate) fn get(&self, id: &RecordId) -> Option<(CachedResponse, Timestamp)> {
        let cached = self.entries.get(id)?;
        let now = self.time_of(&cached);
        if now.is_none() {
            self.entries.remove(id);
        }
        Some((cached, now?))
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
        if !may_be_cached(record) {
            return;
        }
        let cached = CachedResponse { record: record.clone(), response: response.clone(), read_at, now };
        self.entries.insert(record.id, cached);
    }
}

/// Returns whether the record is completed and has its response.
pub(super) fn may_be_cached(record: &Record) -> bool {
    record.state.is_completed() && !record.flags.not_retained
}

#[derive(Clone)]
struct Weight;

impl Weighter<RecordId, CachedResponse> for Weight {
    fn weight(&self, _: &RecordId, cached: &CachedResponse) -> u64 {
        let CachedResponse { record, response, .. } = cached;
        let line = |(name, value): &(String, Bytes)| name.len() + value.len() + LINE_BYTES;
        let lines: usize = response.headers.iter().chain(&response.trailers).map(line).sum();
        // The client chooses these, the path up to the size of a request's head.
        let identity = &record.identity;
        let names = identity.tenant.as_str().len()
            + identity.operation.method.len()
            + identity.operation.path.len()
            + identity.key.as_str().len();
        let note = [&record.note.trace, &record.note.provider_id];
        let note: usize = note.into_iter().flatten().map(String::len).sum();
        (ENTRY_BYTES + lines + names + note + response.body.len()) as u64
    }
}

/// Removes stale entries from time to time, for as long as the engine lives.
pub(super) async fn keep_fresh(engine: Weak<Engine>) {
    let Some(pause) = engine.upgrade().map(|live| live.cache.ttl.max(STALE_CHECK_MIN)) else { return };
    loop {
        tokio::time::sleep(pause).await;
        let Some(live) = engine.upgrade() else { return };
        live.cache.remove_stale();
    }
}

/// Bytes of an entry of fixed size: record, links of the cache and allocations, rounded up.
const ENTRY_BYTES: usize = 1024;

/// Bytes of a header line besides name and value.
const LINE_BYTES: usize = 64;

/// Shortest pause between two searches for stale entries: a search looks at every entry.
const STALE_CHECK_MIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use ibid_core::change::{Draft, Stamp};
    use ibid_core::record::State;
    use ibid_testkit::contract::{TestRecord, draft, insert};

    fn completed_record(path: &str) -> Arc<Record> {
        let name = TestRecord::fresh();
        let mut draft =
            Draft { expires_in: Some(Duration::from_secs(3600)), ..draft(&name, State::Completed) };
        Arc::make_mut(&mut draft.identity).operation.path = path.into();
        insert(&name, draft).apply(Stamp { now: Timestamp::default() }, None).expect("a record")
    }

    fn put(cache: &Cache, record: &Arc<Record>) {
        let response = Arc::new(Response::plain(404, "text/plain", "no".to_owned()));
        cache.put(record, &response, Instant::now(), Timestamp::default());
    }

    #[tokio::test]
    async fn long_paths_count_towards_the_bytes_of_the_cache() {
        let (cache, path) = (Cache::new(1 << 20, Duration::from_secs(60)), "/x".repeat(30_000));
        for _ in 0..100 {
            put(&cache, &completed_record(&path));
        }
        assert!(cache.entries.len() <= (1 << 20) / path.len(), "{} entries", cache.entries.len());
        assert!(cache.entries.len() > 5);
    }

    #[tokio::test(start_paused = true)]
    async fn stale_entries_leave_without_being_asked_for() {
        let cache = Cache::new(1 << 20, Duration::from_secs(60));
        put(&cache, &completed_record("/old"));
        tokio::time::advance(Duration::from_secs(59)).await;
        put(&cache, &completed_record("/new"));
        cache.remove_stale();
        assert_eq!(cache.entries.len(), 2);
        tokio::time::advance(Duration::from_secs(1)).await;
        cache.remove_stale();
        assert_eq!(cache.entries.len(), 1);
    }
}
