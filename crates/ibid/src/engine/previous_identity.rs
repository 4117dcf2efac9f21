//! Records of a previous identity: a request whose record is stored under an old id is decided on that record.
//!
//! No process acts on a previous identity any more, so no record is inserted under an old id: it is read, or its record
//! continues. Invariant: of the record under the current id and those under previous ids at most one holds the key.
//!
//! A record that no longer holds its key (expired, or released without a fingerprint) makes way for the current id, but
//! only once it is sealed: T1 reads an old record as retryable just before it expires; T2 reads it as expired, reserves
//! the current id and runs; T1's write at the version that it read would run the request again. Therefore T2 first writes
//! the old record under a new version, and T1's write is refused.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::StoredRecord;
use ibid_core::machine::{self, BeginRequest, Decision, Event};
#[cfg(feature = "http")]
use ibid_core::scope::RecordId;
#[cfg(feature = "http")]
use ibid_core::store::StoreError;
use tokio::time::Instant;

use super::{Engine, GiveUp, UnavailableError};

/// The id under which a request is decided.
pub(crate) enum ResolvedId {
    /// The current id, with the record stored under it.
    Current(Option<StoredRecord>),
    /// A previous id, whose record holds the key, and the request under that id.
    Previous(Arc<BeginRequest>, StoredRecord),
}

impl Engine {
    /// Finds the id under which a request may begin, and seals the previous records that no longer hold the key. Returns
    /// `None` if the id changed meanwhile.
    pub(crate) async fn resolve_id_to_begin(
        &self,
        ask: &Arc<BeginRequest>,
        deadline: Instant,
    ) -> Result<Option<ResolvedId>, UnavailableError> {
        let (resolved, stale) = self.find_id(ask, deadline).await?;
        // A record under the current id that holds the key was chosen before, and the others were sealed then.
        if let ResolvedId::Current(known) = &resolved
            && known.as_ref().is_none_or(|stored| !machine::holds_key(&stored.record, stored.now))
        {
            for stored in stale {
                if !self.seal(stored, deadline.saturating_duration_since(Instant::now())).await? {
                    return Ok(None);
                }
            }
        }
        Ok(Some(resolved))
    }

    /// Finds the id under which a request that never runs is decided.
    pub(super) async fn resolve_id_to_read(
        &self,
        ask: &Arc<BeginRequest>,
        deadline: Instant,
    ) -> Result<ResolvedId, UnavailableError> {
        Ok(self.find_id(ask, deadline).await?.0)
    }

    /// Returns the id under which a record is stored. The record that holds the key comes first, then the current id before
    /// previous ones; if no record is stored, it is the current id.
    #[cfg(feature = "http")]
    pub(crate) async fn find_stored_id(
        &self,
        current: RecordId,
        previous: &[RecordId],
    ) -> Result<RecordId, StoreError> {
        if previous.is_empty() {
            return Ok(current);
        }
        let ids: Vec<RecordId> = std::iter::once(current).chain(previous.iter().copied()).collect();
        let loaded = self.load_all(ids).await?;
        let holds = |stored: &&StoredRecord| machine::holds_key(&stored.record, stored.now);
        let stored = loaded.iter().flatten().find(holds).or_else(|| loaded.iter().flatten().next());
        Ok(stored.map_or(current, |stored| stored.record.id))
    }

    /// Returns the id that holds the key, and the previous records that no longer hold it.
    async fn find_id(
        &self,
        ask: &Arc<BeginRequest>,
        deadline: Instant,
    ) -> Result<(ResolvedId, Vec<StoredRecord>), UnavailableError> {
        let ids = std::iter::once(ask.id).chain(ask.previous.iter().map(|name| name.id)).collect();
        let loaded = self.within(deadline, self.load_all(ids)).await;
        let Some(Ok(loaded)) = loaded else { return Err(UnavailableError::no_reply()) };
        let mut loaded = loaded.into_iter();
        let current = loaded.next().flatten();
        let holds = |stored: &StoredRecord| machine::holds_key(&stored.record, stored.now);
        if current.as_ref().is_some_and(holds) {
            return Ok((ResolvedId::Current(current), Vec::new()));
        }
        let mut stale = Vec::new();
        for (name, stored) in ask.previous.iter().zip(loaded) {
            match stored {
                Some(stored) if holds(&stored) => {
                    return Ok((ResolvedId::Previous(Arc::new(ask.under(name)), stored), Vec::new()));
                }
                Some(stored) => stale.push(stored),
                None => {}
            }
        }
        Ok((ResolvedId::Current(current), stale))
    }

    /// Writes a record under a new version, so that writes lose that were decided when it still held its key. Returns
    /// `false` if it holds the key again.
    async fn seal(&self, stored: StoredRecord, patience: Duration) -> Result<bool, UnavailableError> {
        let sealed = self.write_until_done(Some(stored), GiveUp::Soon, |nonce| Event::Seal { nonce });
        let sealed =
            tokio::time::timeout(patience, sealed).await.map_err(|_| UnavailableError::no_reply())?;
        Ok(sealed.refused.is_none() && sealed.decision == Decision::Freed)
    }
}
