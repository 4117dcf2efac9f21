//! What a person does about records and effects: finds them, settles what is unknown, forgets an answer, has a dead
//! effect made or lets it go.
//!
//! It decides nothing: `ibid_core::machine` says what an act makes of a record, the store refuses what comes too late, and
//! the history keeps who did what and why in the same commit. Whoever loses a race is told who won.
//!
//! ```
//! # use std::sync::Arc;
//! # use ibid::{Ibid, Settings};
//! # use ibid::core::{act::Act, record::State};
//! # use ibid::store::{clock::Clock, memory::MemoryStore};
//! use ibid::operator::{Filter, Found, Operator};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let ibid = Ibid::start(Arc::new(MemoryStore::new(Clock::system())), Settings::default()).await?;
//! let operator = Operator::of(&ibid);
//! let unknown = Filter { state: Some(State::Unknown), ..Filter::default() };
//! for stored in operator.find(unknown).await?.records {
//!     let act = Act::new("ann", "the provider never saw it")?;
//!     operator.resolve(stored.record.id, None, &Found::NotExecuted, &act).await?;
//! }
//! # Ok(()) }
//! ```

mod bulk;
mod effects;
mod write;

use std::sync::Arc;

use ibid_core::change::{History, Stored};
use ibid_core::scope::{IdPrefix, RecordId};
use ibid_core::store::{Store, StoreError};
use ibid_core::time::Timestamp;

use crate::ibid::Ibid;

pub use bulk::{BULK_MAX, Deed, Preview, Seen};
pub use effects::DeadLetters;
pub use ibid_core::act::{Act, ActError};
pub use ibid_core::machine::Found;
pub use ibid_core::store::{Filter, PathPattern};
pub use write::{Refused, answer};

/// A person at one store.
#[derive(Clone)]
pub struct Operator {
    store: Arc<dyn Store>,
    /// Who serves requests in this process, if anybody.
    ibid: Option<Ibid>,
}

/// Records that fit, in the order of their ids.
#[derive(Clone, Debug)]
pub struct Page {
    /// The records, without their answers.
    pub records: Vec<Stored>,
    /// The cursor of the next page, if there is one.
    pub next: Option<RecordId>,
}

/// All that is known of one record.
#[derive(Clone, Debug)]
pub struct Life {
    /// The record with its answer.
    pub stored: Stored,
    /// What happened to it, oldest first.
    pub history: Vec<(Timestamp, History)>,
}

impl Operator {
    /// Beside an engine in this process: its waiters are told at once, and its cache forgets what is forgotten.
    pub fn of(ibid: &Ibid) -> Operator {
        Operator { store: ibid.store().clone(), ibid: Some(ibid.clone()) }
    }

    /// At a store that other processes serve from. They learn of an act when they next ask the store; an answer that is
    /// forgotten may be replayed for as long as their `cache_ttl`.
    pub fn at(store: Arc<dyn Store>) -> Operator {
        Operator { store, ibid: None }
    }

    /// The records that fit.
    pub async fn find(&self, filter: Filter) -> Result<Page, StoreError> {
        let (limit, dead_letters) = (filter.limit as usize, filter.dead_letter);
        // One more than asked for tells whether there are more.
        let wider = Filter { limit: filter.limit.saturating_add(1), ..filter };
        let mut records = self.store.list(wider).await?;
        let more = records.len() > limit;
        records.truncate(limit);
        let next = records.last().filter(|_| more).map(|stored| stored.record.id);
        if dead_letters {
            // What a late answer may still settle is nobody's to look at yet.
            records.retain(|stored| stored.record.is_dead_letter(stored.now));
        }
        Ok(Page { records, next })
    }

    /// The one record whose id begins so.
    pub async fn one(&self, prefix: &IdPrefix) -> Result<Stored, Refused> {
        let filter = Filter { prefix: Some(prefix.clone()), limit: AMBIGUOUS_MAX, ..Filter::default() };
        let mut page = self.find(filter).await?;
        if page.records.len() > 1 {
            return Err(Refused::Ambiguous(page));
        }
        page.records.pop().ok_or(Refused::NoSuchRecord)
    }

    /// A record and all that happened to it.
    pub async fn life(&self, id: RecordId) -> Result<Life, Refused> {
        let stored = self.load(id).await?.ok_or(Refused::NoSuchRecord)?;
        Ok(Life { stored, history: self.store.history(id).await? })
    }

    async fn load(&self, id: RecordId) -> Result<Option<Stored>, StoreError> {
        Ok(self.store.load(vec![id]).await?.pop().flatten())
    }
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator").field("store", &self.store.kind()).finish_non_exhaustive()
    }
}

/// Records that are shown for an id that fits several: a screenful.
const AMBIGUOUS_MAX: u32 = 20;
