//! One act on one record: load, decide, commit; decide again on a lost race, and say who won if there is nothing left to
//! do. It goes on for a bounded time: a person waits for it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ibid_core::act::Act;
use ibid_core::change::{Change, Commit, Happened, History, Stored};
use ibid_core::machine::{self, Answer, Event, Finder, Found, Verdict};
use ibid_core::record::{Nonce, Version};
use ibid_core::response::Response;
use ibid_core::scope::RecordId;
use ibid_core::store::StoreError;
use ibid_core::time::Timestamp;

use super::{Operator, Page};
use crate::backoff::Backoff;
use crate::engine::apply_change;
use crate::random::nonce;

/// Why an act was not done.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// No record has this id, or begins so.
    #[error("there is no such record")]
    NoSuchRecord,
    /// Several records begin so.
    #[error("several records begin so")]
    Ambiguous(Page),
    /// What is stored does not allow it, or somebody was quicker.
    #[error("the record is {}{}", state(.stored), said(.last))]
    NotNow {
        /// The record as it is now.
        stored: Box<Stored>,
        /// The last that happened to it.
        last: Option<Box<(Timestamp, History)>>,
    },
    /// It has changed since it was looked at.
    #[error("the record has changed since it was looked at: it is {}{}", state(.stored), said(.last))]
    Changed {
        /// The record as it is now.
        stored: Box<Stored>,
        /// The last that happened to it.
        last: Option<Box<(Timestamp, History)>>,
    },
    /// The given answer is larger than what the record's route keeps.
    #[error("the answer has {bytes} bytes, and the record's rules keep {max} (`max_response_body`)")]
    TooLarge {
        /// Of the answer.
        bytes: u64,
        /// What may be kept.
        max: u64,
    },
    /// The store failed. The act may have been written all the same: look again.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn state(stored: &Stored) -> String {
    let record = &stored.record;
    let expired = if record.is_expired(stored.now) { "expired " } else { "" };
    match record.note.status {
        Some(status) => format!("{expired}{} ({status})", record.state.name()),
        None => format!("{expired}{}", record.state.name()),
    }
}

fn said(last: &Option<Box<(Timestamp, History)>>) -> String {
    last.as_ref().map_or(String::new(), |last| format!("; last: {}", last.1.detail))
}

/// An answer as a person gives it, to be replayed to every retry.
pub fn answer(status: u16, content_type: &str, body: impl Into<Bytes>) -> Answer {
    let content_type = ("content-type".to_owned(), Bytes::copy_from_slice(content_type.as_bytes()));
    let response =
        Response { status, headers: vec![content_type], body: body.into(), trailers: Vec::new(), version: 0 };
    Answer { status, retry_after: false, kept: Some(response.to_bytes()), provider_id: None, proof: None }
}

impl Operator {
    /// Settles an unknown record by what a person found out: executed, with this answer for every retry, or not
    /// executed, and the next retry runs. `seen` is the Version that was looked at; none: whatever it is now.
    pub async fn resolve(
        &self,
        id: RecordId,
        seen: Option<Version>,
        found: &Found,
        act: &Act,
    ) -> Result<Stored, Refused> {
        let event =
            |nonce, as_of| Event::Found { nonce, by: Finder::Operator(act), what: found, as_of, jitter: 0.0 };
        let check = |stored: &Stored| match found {
            Found::Executed(Answer { kept: Some(kept), .. }) => fits(kept, stored),
            _ => Ok(()),
        };
        self.act(id, seen, check, event).await
    }

    /// Takes the mark of a dead letter off a record whose outcome is known. An unknown one is resolved instead.
    pub async fn seen(&self, id: RecordId, seen: Option<Version>, act: &Act) -> Result<Stored, Refused> {
        self.act(id, seen, |_| Ok(()), |nonce, _| Event::Seen { nonce, act }).await
    }

    /// Makes a completed or expired record absent: the next request under its key runs as new. Final in this process at
    /// once, and everywhere after `cache_ttl`.
    pub async fn forget(&self, id: RecordId, seen: Option<Version>, act: &Act) -> Result<Stored, Refused> {
        self.act(id, seen, |_| Ok(()), |nonce, _| Event::Forget { nonce, act }).await
    }

    pub(super) async fn act<'a>(
        &self,
        id: RecordId,
        seen: Option<Version>,
        check: impl Fn(&Stored) -> Result<(), Refused>,
        event: impl Fn(Nonce, Timestamp) -> Event<'a>,
    ) -> Result<Stored, Refused> {
        let mut stored = self.load(id).await?.ok_or(Refused::NoSuchRecord)?;
        // What a person knows is about what ran until now: a run that begins meanwhile is not settled by it.
        let as_of = stored.now;
        for _ in 0..RACES_MAX {
            if seen.is_some_and(|seen| seen != stored.record.version) {
                let last = self.last(id).await;
                return Err(Refused::Changed { stored: Box::new(stored), last });
            }
            let verdict = machine::decide(Some(&stored.record), &event(nonce(), as_of), stored.now);
            let Verdict::Write(change, _) = verdict else { break };
            check(&stored)?;
            match self.commit(&change).await? {
                Commit::Done(stamp) => {
                    self.tell(&id);
                    return Ok(apply_change(&change, stamp, Some(&stored)).unwrap_or(stored));
                }
                Commit::Conflict(Some(newer)) if change.is_stored_as(&newer) => {
                    self.tell(&id);
                    return Ok(*newer);
                }
                Commit::Conflict(newer) => stored = *newer.ok_or(Refused::NoSuchRecord)?,
            }
        }
        let last = self.last(id).await;
        Err(Refused::NotNow { stored: Box::new(stored), last })
    }

    /// The same Change with the same nonce while its fate is unknown.
    async fn commit(&self, change: &Arc<Change>) -> Result<Commit, StoreError> {
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        for _ in 1..COMMIT_TRIES_MAX {
            match self.store.commit(vec![change.clone()]).await.pop() {
                Some(Err(error)) if error.is_transient() => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "an operator's write is retried"
                    );
                }
                Some(fate) => return fate,
                None => {}
            }
            tokio::time::sleep(backoff.next()).await;
        }
        let fate = self.store.commit(vec![change.clone()]).await.pop();
        fate.unwrap_or_else(|| Err(StoreError::transient("any", "commit", "no fate was told")))
    }

    /// The last that settled the record, for whoever came too late.
    async fn last(&self, id: RecordId) -> Option<Box<(Timestamp, History)>> {
        let mut history = self.store.history(id).await.ok()?;
        let settles = |line: &History| matches!(line.what, Happened::Settled | Happened::Operator);
        let place = history.iter().rposition(|(_, line)| settles(line)).or(history.len().checked_sub(1))?;
        Some(Box::new(history.swap_remove(place)))
    }

    fn tell(&self, id: &RecordId) {
        if let Some(ibid) = &self.ibid {
            ibid.engine().forget(id);
            ibid.engine().notify_waiters(id);
        }
    }
}

fn fits(kept: &Bytes, stored: &Stored) -> Result<(), Refused> {
    let max = stored.record.policy.max_response_body;
    let bytes = Response::from_bytes(kept).map_or(0, |response| response.body.len() as u64);
    if bytes > max { Err(Refused::TooLarge { bytes, max }) } else { Ok(()) }
}

/// How often one act is decided anew. A record changes a handful of times in its life; who loses eight races in a row is
/// told how it stands.
const RACES_MAX: u32 = 8;

/// How often one write is sent while the store fails: about two seconds in all, the patience of a person.
const COMMIT_TRIES_MAX: u32 = 6;

/// First pause after a failed write; it doubles.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Longest pause between two tries: the one before the last of [`COMMIT_TRIES_MAX`].
const PAUSE_MAX: Duration = Duration::from_millis(800);
