//! A cache of completed responses in front of the store, which all nodes share.
//!
//! It never decides. The engine asks it before the store, checks the age of an entry by the store's clock, and hands the
//! record to the machine like one of the process's own cache. A miss, an error or an evicted entry only costs time: the
//! store is asked.
//!
//! ```no_run
//! # #[cfg(all(feature = "redis", feature = "sqlite"))]
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use ibid::front::redis::{RedisFront, RedisFrontOptions};
//! use ibid::store::sqlite::{SqliteOptions, SqliteStore};
//! use ibid::{Ibid, Settings};
//!
//! let store = Arc::new(SqliteStore::open("ibid.db".as_ref(), SqliteOptions::default())?);
//! let front = RedisFront::open("redis://127.0.0.1/", &*store, RedisFrontOptions::default()).await?;
//! let settings = Settings::default().with(|settings| settings.front = Some(Arc::new(front)));
//! let ibid = Ibid::start(store, settings).await?;
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "redis")]
mod entry;
#[cfg(feature = "redis")]
pub mod redis;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ibid_core::record::Record;
use ibid_core::response::Response;
use ibid_core::scope::RecordId;
use ibid_core::store::BoxFuture;
use ibid_core::time::Timestamp;

/// A cache that the nodes on one store share. Every call ends within milliseconds and has no error.
pub trait SharedCache: fmt::Debug + Send + Sync + 'static {
    /// Returns the entry of a record; `None` if there is none or it can't be read.
    ///
    /// While another node asks the store for the same record, it may wait some milliseconds for the entry of that node.
    fn find(&self, id: RecordId) -> BoxFuture<'_, Option<SharedEntry>>;

    /// Puts an entry for at most `lives`, unless the cache has one that was read later. Returns at once; an entry that
    /// can't be written soon is dropped.
    fn put(&self, entry: SharedEntry, lives: Duration);

    /// Removes the entry of a record, if it can be done soon. Returns at once.
    fn remove(&self, id: RecordId);
}

/// A completed record as one node read it from the store.
#[derive(Clone, Debug)]
pub struct SharedEntry {
    /// The completed record, as it was stored.
    pub record: Arc<Record>,
    /// The response that retries get.
    pub response: Arc<Response>,
    /// The store's time when the record was read.
    pub read_at: Timestamp,
}

/// Default of the longest wait for one reply of the cache's server. A reply takes a fraction of a millisecond within one
/// network, and one with a large response a few; the store takes about as long.
pub const TIMEOUT: Duration = Duration::from_millis(10);
