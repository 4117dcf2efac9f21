//! A store with room for one record.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ibid_core::change::{BodyKind, Change, Commit, Expect, History, Stamp, StoredRecord};
use ibid_core::record::{Nonce, Record, Version};
use ibid_core::response::SavedResponse;
use ibid_core::time::Timestamp;

/// A store with room for one record: it compares versions and instants, and does not interpret states.
#[derive(Clone, Debug)]
pub struct StoryStore {
    /// The time of the store's clock.
    pub now: Timestamp,
    row: Option<Record>,
    response: Option<SavedResponse>,
    bodies: BTreeMap<(Nonce, u32), Bytes>,
    history: Vec<History>,
}

impl StoryStore {
    /// Makes an empty store, at an instant long after the epoch.
    pub fn new() -> StoryStore {
        StoryStore {
            now: Timestamp::from_micros(1_700_000_000_000_000),
            row: None,
            response: None,
            bodies: BTreeMap::new(),
            history: Vec::new(),
        }
    }

    /// Returns the stored row, if there is one.
    pub fn record(&self) -> Option<&Record> {
        self.row.as_ref()
    }

    /// Returns the row with its response, as a store would.
    pub fn load(&self) -> Option<StoredRecord> {
        let record = self.row.clone()?;
        Some(StoredRecord { record: Arc::new(record), response: self.response.clone(), now: self.now })
    }

    /// Returns the body of this kind that one generation stored.
    pub fn body(&self, birth: Nonce, kind: BodyKind) -> Option<&Bytes> {
        self.bodies.get(&(birth, kind.code()))
    }

    /// Returns every history line written so far.
    pub fn history(&self) -> &[History] {
        &self.history
    }

    /// Applies the change, or returns the conflicting row.
    pub fn commit(&mut self, change: &Change) -> Commit {
        let fits = match (change.expect, &self.row) {
            (Expect::Absent, row) => row.is_none(),
            (Expect::Version(version), Some(row)) => row.version == version,
            (Expect::Due(version), Some(row)) => row.version == version && row.is_due(self.now),
            (Expect::Version(_) | Expect::Due(_), None) => false,
            (Expect::Anything, _) => change.draft.is_none(),
        };
        if !fits {
            return Commit::Conflict(self.load().map(Box::new));
        }
        let stamp = Stamp { now: self.now };
        if change.clears_bodies {
            self.bodies.clear();
        }
        if let Some(stored) = change.stored_after(stamp, self.load().as_ref()) {
            let birth = stored.record.birth;
            self.bodies.extend(change.bodies.iter().map(|b| ((birth, b.kind.code()), b.data.clone())));
            self.response = stored.response;
            self.row = Some(Arc::unwrap_or_clone(stored.record));
        }
        self.history.extend(change.history.iter().cloned());
        Commit::Done(stamp)
    }

    /// Moves the due instant to now plus the row's lease and returns `true`, if the row is still at `version`.
    pub fn renew(&mut self, version: Version) -> bool {
        match &mut self.row {
            Some(row) if row.version == version => {
                row.due_at = Some(self.now.after(row.policy.lease));
                true
            }
            _ => false,
        }
    }

    /// Removes the row and returns `true`, if it is due for removal.
    pub fn purge(&mut self) -> bool {
        let goes = self.row.as_ref().is_some_and(|row| row.is_purgeable(self.now));
        if goes {
            self.lose();
        }
        goes
    }

    /// Drops the row, as an asynchronous failover may.
    pub fn lose(&mut self) {
        self.row = None;
        self.response = None;
        self.bodies.clear();
    }
}

impl Default for StoryStore {
    fn default() -> Self {
        StoryStore::new()
    }
}
