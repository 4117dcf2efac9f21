//! Records of a previous identity: a request whose record is stored under an old id is decided on that record.
//!
//! No process acts on a previous identity any more, so an old id is never newly inserted: it is read, or its record goes
//! on. Invariant: of the record under the current id and those under previous ids at most one holds the key.
//!
//! A record that holds its key no longer (expired, or released without a fingerprint) makes way for the current id, but
//! only once it is sealed: T1 reads an old record as retryable just before it expires; T2 reads it as expired, reserves
//! the current id and runs; T1's write at the version that it read would run the request again. So T2 first writes the
//! old record under a new version, and T1's write is refused.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::Stored;
use ibid_core::machine::{self, Ask, Decision, Event, Role};
#[cfg(feature = "http")]
use ibid_core::scope::RecordId;
use tokio::time::Instant;

use super::again::AGAIN_MIN;
use super::{COMMIT_TRIES_MAX, Ibid, Step, Unavailable};
use crate::outcome::{Begin, Outcome};

/// Under which of its names a request is decided.
pub(crate) enum Named {
    /// Under the current id, with what is stored there.
    Current(Option<Stored>),
    /// Under a previous id, whose record holds the key.
    Previous(Arc<Ask>, Stored),
}

impl Ibid {
    /// A begin of a request that may have a record under a previous id.
    pub(super) async fn decide_previous(
        &self,
        ask: &Arc<Ask>,
        role: Role,
        mut at: Instant,
    ) -> Result<Begin, Unavailable> {
        let deadline = at + self.inner.begin_timeout;
        for _ in 0..COMMIT_TRIES_MAX {
            match self.named_to_begin(ask, deadline).await? {
                Some(Named::Current(known)) => return self.decide(ask, role, known, at).await,
                Some(Named::Previous(ask, stored)) => {
                    // Another write needs another nonce: one names one write, and is kept only to repeat it.
                    let ask = self.one_writers(Ask::clone(&ask));
                    if let Step::Begun(begun) = self.step(&ask, role, Some(stored), at, deadline).await? {
                        return Ok(begun);
                    }
                }
                None => {}
            }
            // It changed or went: which id counts is another question now.
            at = Instant::now();
        }
        Ok(Begin::Skip(Outcome::InFlight { retry_in: AGAIN_MIN }))
    }

    /// The name under which a request may begin; none if that changed meanwhile. Previous records that hold the key no longer
    /// are sealed.
    pub(crate) async fn named_to_begin(
        &self,
        ask: &Arc<Ask>,
        deadline: Instant,
    ) -> Result<Option<Named>, Unavailable> {
        let (named, stale) = self.find_named(ask).await?;
        // With a record of its own, the current id was chosen before, and these were sealed then.
        if let Named::Current(known) = &named
            && known.as_ref().is_none_or(|stored| !machine::holds_key(&stored.record, stored.now))
        {
            for stored in stale {
                if !self.seal(stored, deadline.saturating_duration_since(Instant::now())).await? {
                    return Ok(None);
                }
            }
        }
        Ok(Some(named))
    }

    /// The name under which a request is decided by one who only looks.
    pub(super) async fn named_to_look(&self, ask: &Arc<Ask>) -> Result<Named, Unavailable> {
        Ok(self.find_named(ask).await?.0)
    }

    /// The id under which a record is looked at: the first that is there, the current one before previous ones, and the
    /// current one if none is.
    #[cfg(feature = "http")]
    pub(crate) async fn id_of_any(
        &self,
        current: RecordId,
        previous: &[RecordId],
    ) -> Result<RecordId, ibid_core::store::StoreError> {
        if previous.is_empty() {
            return Ok(current);
        }
        let ids: Vec<RecordId> = std::iter::once(current).chain(previous.iter().copied()).collect();
        let stored = self.inner.store.load(ids.clone()).await?;
        let holds = |stored: &&Stored| machine::holds_key(&stored.record, stored.now);
        let held = stored.iter().flatten().find(holds).or_else(|| stored.iter().flatten().next());
        Ok(held.map_or(current, |stored| stored.record.id))
    }

    /// The name that counts, and the previous records that hold the key no longer.
    async fn find_named(&self, ask: &Arc<Ask>) -> Result<(Named, Vec<Stored>), Unavailable> {
        let ids = std::iter::once(ask.id).chain(ask.previous.iter().map(|name| name.id)).collect();
        let loaded = self.inner.load_all(ids).await.map_err(|_| Unavailable::unanswered())?;
        let mut loaded = loaded.into_iter();
        let current = loaded.next().flatten();
        let holds = |stored: &Stored| machine::holds_key(&stored.record, stored.now);
        if current.as_ref().is_some_and(holds) {
            return Ok((Named::Current(current), Vec::new()));
        }
        let mut stale = Vec::new();
        for (name, stored) in ask.previous.iter().zip(loaded) {
            match stored {
                Some(stored) if holds(&stored) => {
                    return Ok((Named::Previous(Arc::new(ask.under(name)), stored), Vec::new()));
                }
                Some(stored) => stale.push(stored),
                None => {}
            }
        }
        Ok((Named::Current(current), stale))
    }

    /// Makes writes lose that were decided when this record still held its key. False if it holds it again.
    async fn seal(&self, stored: Stored, patience: Duration) -> Result<bool, Unavailable> {
        let sealed = self.inner.settle_patiently(Some(stored), |nonce| Event::Seal { nonce });
        let sealed = tokio::time::timeout(patience, sealed).await.map_err(|_| Unavailable::unanswered())?;
        Ok(sealed.refused.is_none() && sealed.decision == Decision::Freed)
    }
}
