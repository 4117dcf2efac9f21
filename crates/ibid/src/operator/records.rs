//! One action on one record: load, decide, commit. On a lost race it decides again, and returns the winner if there is
//! nothing left to do. It is bounded in time, because an operator waits for it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{Change, Commit, HistoryKind, HistoryLine, StoredRecord};
use ibid_core::machine::{self, AttemptResponse, Observation, Verdict};
use ibid_core::operator_action::OperatorAction;
use ibid_core::record::Version;
use ibid_core::response::Response;
use ibid_core::scope::RecordId;
use ibid_core::store::StoreError;

use super::{BulkAction, Operator, OperatorError};
use crate::backoff::Backoff;
use crate::engine::apply_change;
use crate::random::nonce;

/// Builds the response that an operator gives, to be replayed to every retry.
pub fn answer(status: u16, content_type: &str, body: impl Into<Bytes>) -> AttemptResponse {
    let content_type = ("content-type".to_owned(), Bytes::copy_from_slice(content_type.as_bytes()));
    let response = Response { status, headers: vec![content_type], body: body.into(), trailers: Vec::new() };
    AttemptResponse {
        status,
        retry_after: false,
        kept: Some(Arc::new(response)),
        provider_id: None,
        proof: None,
    }
}

impl Operator {
    /// Settles an unknown record with the outcome that the operator found: executed, and every retry gets this response, or
    /// not executed, and the next retry runs. `seen` is the version that the operator saw; `None` accepts any version.
    ///
    /// # Errors
    ///
    /// Fails if there is no such record, if its state does not allow it, if it has changed since `seen`, or if the store
    /// fails.
    ///
    /// # Cancel safety
    ///
    /// A write that was already sent is not taken back. If the future is dropped, read the record to see whether it was written;
    /// acting again is refused if it was.
    pub async fn resolve(
        &self,
        id: RecordId,
        seen: Option<Version>,
        found: &Observation,
        act: &OperatorAction,
    ) -> Result<StoredRecord, OperatorError> {
        self.act_on_record(id, seen, &BulkAction::Resolve(found.clone()), act).await
    }

    /// Clears the dead-letter flag of a record whose outcome is known. An unknown one is
    /// [resolved](Operator::resolve) instead.
    ///
    /// # Errors
    ///
    /// Fails as [`resolve`](Operator::resolve) does.
    ///
    /// # Cancel safety
    ///
    /// A write that was already sent is not taken back. If the future is dropped, read the record to see whether it was written;
    /// acting again is refused if it was.
    pub async fn acknowledge(
        &self,
        id: RecordId,
        seen: Option<Version>,
        act: &OperatorAction,
    ) -> Result<StoredRecord, OperatorError> {
        self.act_on_record(id, seen, &BulkAction::Acknowledge, act).await
    }

    /// Makes a completed or expired record absent: the next request under its key runs as new. Takes effect in this
    /// process at once, and in all others within `cache_ttl`.
    ///
    /// # Errors
    ///
    /// Fails as [`resolve`](Operator::resolve) does.
    ///
    /// # Cancel safety
    ///
    /// A write that was already sent is not taken back. If the future is dropped, read the record to see whether it was written;
    /// acting again is refused if it was.
    pub async fn forget(
        &self,
        id: RecordId,
        seen: Option<Version>,
        act: &OperatorAction,
    ) -> Result<StoredRecord, OperatorError> {
        self.act_on_record(id, seen, &BulkAction::Forget, act).await
    }

    pub(super) async fn act_on_record(
        &self,
        id: RecordId,
        seen: Option<Version>,
        action: &BulkAction,
        act: &OperatorAction,
    ) -> Result<StoredRecord, OperatorError> {
        self.check_open().await?;
        let mut stored = self.load(id).await?.ok_or(OperatorError::NoSuchRecord)?;
        // The operator knows only about attempts until now, so the action does not settle one that begins meanwhile.
        let as_of = stored.now;
        for _ in 0..RACES_MAX {
            if seen.is_some_and(|seen| seen != stored.record.version) {
                let last = self.last(id).await;
                return Err(OperatorError::Changed { stored: Box::new(stored), last });
            }
            let event = action.event(nonce(), as_of, act);
            let verdict = machine::decide(Some(&stored.record), &event, stored.now);
            let Verdict::Write(change, _) = verdict else { break };
            if let BulkAction::Resolve(Observation::Executed(AttemptResponse {
                kept: Some(response), ..
            })) = action
            {
                check_size(response, &stored)?;
            }
            match self.commit(&change).await? {
                Commit::Done(stamp) => {
                    self.notify(&id);
                    self.check_still_open().await?;
                    return Ok(apply_change(&change, stamp, Some(&stored)).unwrap_or(stored));
                }
                Commit::Conflict(Some(newer)) if change.is_stored_as(&newer) => {
                    self.notify(&id);
                    self.check_still_open().await?;
                    return Ok(*newer);
                }
                Commit::Conflict(newer) => stored = *newer.ok_or(OperatorError::NoSuchRecord)?,
            }
        }
        let last = self.last(id).await;
        Err(OperatorError::NotNow { stored: Box::new(stored), last })
    }

    /// Sends the same change with the same nonce until its result is known.
    async fn commit(&self, change: &Arc<Change>) -> Result<Commit, StoreError> {
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        for _ in 1..COMMIT_TRIES_MAX {
            match self.store.commit(change.clone(), None).await {
                Err(error) if error.is_transient() => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "operator action not written; retrying"
                    );
                }
                result => return result,
            }
            tokio::time::sleep(backoff.next()).await;
        }
        self.store.commit(change.clone(), None).await
    }

    /// Returns the last line of history that settled the record, or else the last one.
    async fn last(&self, id: RecordId) -> Option<Box<HistoryLine>> {
        let mut history = self.store.browse()?.history(id).await.ok()?;
        let settles = |line: &HistoryLine| matches!(line.what, HistoryKind::Settled | HistoryKind::Operator);
        let index = history.iter().rposition(settles).or(history.len().checked_sub(1))?;
        Some(Box::new(history.swap_remove(index)))
    }

    fn notify(&self, id: &RecordId) {
        if let Some(ibid) = &self.ibid {
            ibid.engine().forget(id);
            ibid.engine().notify_waiters(id);
        }
    }
}

fn check_size(response: &Response, stored: &StoredRecord) -> Result<(), OperatorError> {
    let max = stored.record.policy.max_response_body;
    let bytes = response.body.len() as u64;
    if bytes > max { Err(OperatorError::TooLarge { bytes, max }) } else { Ok(()) }
}

/// Times that one action is decided while it loses races. A record changes a handful of times in its life; after eight
/// lost races the operator gets the record as it is now.
const RACES_MAX: u32 = 8;

/// Times that one write is sent while the store fails: about two seconds in all, as long as an operator waits patiently.
const COMMIT_TRIES_MAX: u32 = 6;

/// First pause after a failed write. It doubles.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Longest pause between two tries: the one before the last of [`COMMIT_TRIES_MAX`].
const PAUSE_MAX: Duration = Duration::from_millis(800);
