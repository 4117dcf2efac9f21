//! Operator actions on records and effects: find them, resolve an unknown outcome, forget a response, retry or discard a
//! dead effect.
//!
//! Nothing is decided here. `ibid_core::machine` decides what an action does to a record, the store refuses an action that
//! comes too late, and the same commit adds who did what and why to the history. An action that loses a race returns the
//! record as the winner left it.
//!
//! ```
//! # use std::sync::Arc;
//! # use ibid::{Ibid, Settings, State};
//! # use ibid::store::{clock::Clock, memory::MemoryStore};
//! use ibid::operator::{Observation, Operator, OperatorAction, RecordFilter};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let ibid = Ibid::start(Arc::new(MemoryStore::new(Clock::system())), Settings::default()).await?;
//! let operator = Operator::new(&ibid);
//! let unknown = RecordFilter::default().with(|filter| filter.state = Some(State::Unknown));
//! for stored in operator.find(unknown).await?.records {
//!     let act = OperatorAction::new("ann", "the provider never saw it")?;
//!     operator.resolve(stored.record.id, None, &Observation::NotExecuted, &act).await?;
//! }
//! # Ok(()) }
//! ```

mod bulk;
mod effects;
mod error;
mod records;

use std::sync::Arc;

use ibid_core::change::{HistoryLine, StoredRecord};
use ibid_core::scope::{IdPrefix, RecordId};
use ibid_core::store::{Cursor, Page, Store, StoreError};

use crate::ibid::Ibid;
use crate::identity::{self, IdentityError};

pub use bulk::{BULK_MAX, BulkAction, BulkPreview, SeenVersion};
pub use effects::{DeadLetters, EffectAction};
pub use error::OperatorError;
pub use ibid_core::machine::Observation;
pub use ibid_core::operator_action::{OperatorAction, OperatorActionError};
pub use ibid_core::store::{PathPattern, RecordCounts, RecordFilter, RowCount};
pub use records::answer;

/// Operator actions on one store.
#[derive(Clone)]
pub struct Operator {
    store: Arc<dyn Store>,
    /// The engine that serves requests from this store in this process, if there is one.
    ibid: Option<Ibid>,
}

/// One page of records, in the order of their ids.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordList {
    /// The records, without their responses.
    pub records: Vec<StoredRecord>,
    /// The cursor of the next page, if there is one.
    pub next: Option<Cursor>,
}

/// One record with its history.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordHistory {
    /// The record with its response.
    pub stored: StoredRecord,
    /// History of the record, oldest line first.
    pub history: Vec<HistoryLine>,
}

impl Operator {
    /// Acts on the store of `ibid`. An action wakes duplicates that wait in this process, and removes the record from its
    /// cache.
    pub fn new(ibid: &Ibid) -> Operator {
        Operator { store: ibid.store().clone(), ibid: Some(ibid.clone()) }
    }

    /// Acts on a store that other processes serve requests from. They learn of an action when they next read the store;
    /// they may replay a forgotten response for as long as their `cache_ttl`.
    pub fn on_store(store: Arc<dyn Store>) -> Operator {
        Operator { store, ibid: None }
    }

    /// Refuses an action on a store that a copy keeps closed: it would be lost, or is in another store to do.
    async fn check_open(&self) -> Result<(), StoreError> {
        identity::check_open(&*self.store).await.map_err(|error| match error {
            IdentityError::Store(error) => error,
            other => StoreError::lasting(self.store.facts().name, "act on a record", other).unwritten(),
        })
    }

    /// Checks, after an action was written, that it was written to an open store.
    ///
    /// T1 (an action) reads that the store is open, and stalls; T2 (a copy) closes the store, waits, and copies the record; T1 writes to
    /// the record in the source, which no process uses any more. The operator must not take that for done.
    async fn check_still_open(&self) -> Result<(), StoreError> {
        identity::check_open(&*self.store).await.map_err(|error| match error {
            IdentityError::Store(error) => error,
            other => {
                tracing::warn!(error = %other, "an operator's action was written to a store that a copy has closed");
                let why = "a copy closed the store while the action was written, and may not have it: look at the record in the \
                           store that is open, and act there";
                StoreError::lasting(self.store.facts().name, "act on a record", why)
            }
        })
    }

    /// Returns one page of the records that match `filter`.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn find(&self, filter: RecordFilter) -> Result<RecordList, StoreError> {
        let dead_letters = filter.dead_letter;
        let Page { items: mut records, next } = self.store.require_browse()?.list(filter).await?;
        if dead_letters {
            // A late response may still settle the others.
            records.retain(|stored| stored.record.is_dead_letter(stored.now));
        }
        Ok(RecordList { records, next })
    }

    /// Returns the one record whose id begins with `prefix`.
    ///
    /// # Errors
    ///
    /// Fails if there is none, if there are several, or if the store cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn get(&self, prefix: &IdPrefix) -> Result<StoredRecord, OperatorError> {
        let filter = RecordFilter::default().with(|filter| {
            filter.prefix = Some(prefix.clone());
            filter.limit = AMBIGUOUS_MAX;
        });
        let mut page = self.find(filter).await?;
        if page.records.len() > 1 {
            return Err(OperatorError::Ambiguous(page));
        }
        page.records.pop().ok_or(OperatorError::NoSuchRecord)
    }

    /// Returns a record with its history.
    ///
    /// # Errors
    ///
    /// Fails if there is none, or if the store cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn history(&self, id: RecordId) -> Result<RecordHistory, OperatorError> {
        let stored = self.load(id).await?.ok_or(OperatorError::NoSuchRecord)?;
        Ok(RecordHistory { stored, history: self.store.require_browse()?.history(id).await? })
    }

    /// Counts the records by state, and the dead letters. A store with a large table returns estimates.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn count(&self) -> Result<RecordCounts, StoreError> {
        self.store.require_browse()?.count().await
    }

    async fn load(&self, id: RecordId) -> Result<Option<StoredRecord>, StoreError> {
        self.store.load(id).await
    }
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator").field("store", &self.store.facts().name).finish_non_exhaustive()
    }
}

/// Records that are listed for an ambiguous id: a screenful.
const AMBIGUOUS_MAX: u32 = 20;
