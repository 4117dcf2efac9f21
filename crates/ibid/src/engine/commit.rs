//! Commits changes: a begin until its deadline, everything else until the store answers.
//!
//! A write that the store rejects permanently is abandoned ([`GiveUp`]). Why something is written is decided by
//! `ibid_core::machine`.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::{Change, Commit, Expect, HistoryKind, Stamp, StoredRecord};
use ibid_core::machine::{self, BeginRequest, Decision, Event, Verdict};
use ibid_core::record::{Nonce, Record};
use ibid_core::scope::RecordId;
use ibid_core::store::{REPLY_GRACE, StoreError};
use ibid_core::time::Timestamp;
use metrics::counter;
use tokio::time::Instant;

use super::{Engine, RETRY_AFTER_MIN, UnavailableError};
use crate::backoff::Backoff;
use crate::failpoint::{self, Hit};
use crate::telemetry;

/// Limit after which a write or a read that the store refuses is abandoned. A write whose fate is unknown never is: it is sent
/// again until the store answers, however long an outage lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GiveUp {
    /// After [`SOON_TRIES_MAX`] permanent rejections, or tries that found the row locked: upkeep finds the record again in its
    /// next round.
    Soon,
    /// After [`LATE_TRIES_MAX`] permanent rejections: for data that only this process has, such as a response.
    Late,
}

/// Outcome of a write with [`Engine::write_until_done`].
pub(crate) struct Settlement {
    pub(crate) decision: Decision,
    /// The stored record, as far as it is known.
    pub(crate) stored: Option<StoredRecord>,
    /// The store's error if the write was abandoned. Nothing is known to be written then, and the decision is
    /// [`Decision::Later`].
    pub(crate) refused: Option<StoreError>,
}

impl Settlement {
    fn done(decision: Decision, stored: Option<StoredRecord>) -> Settlement {
        Settlement { decision, stored, refused: None }
    }
}

impl Engine {
    /// Commits a begin. While its fate is unknown it is sent again with the same nonce, until `deadline`. The reply to a begin that
    /// was sent in time may take [`REPLY_GRACE`] longer. `at` is now.
    pub(super) async fn commit_begin(
        self: &Arc<Self>,
        ask: &Arc<BeginRequest>,
        change: &Arc<Change>,
        mut at: Instant,
        deadline: Instant,
    ) -> Result<Commit, UnavailableError> {
        let mut backoff = Backoff::new(RETRY_MIN, BEGIN_RETRY_MAX);
        let mut sent = false;
        // A begin that was never sent says nothing about the store.
        let mut refusal = UnavailableError::refused_early(RETRY_AFTER_MIN);
        loop {
            match self.within(deadline + REPLY_GRACE, self.send_begin(change, deadline)).await {
                // The row may be locked by our own first send, whose connection broke while the server still commits it.
                // Until that is known, this is no answer.
                Some(Ok(commit)) if sent && is_held_and_due(change, &commit) => {}
                Some(Ok(commit)) => {
                    self.observe(at, &commit);
                    return Ok(commit);
                }
                // An earlier try may have failed, and that says something about the store.
                Some(Err(error)) if error.is_unsent() && !sent => return Err(refusal),
                Some(Err(error)) if error.is_unsent() => break,
                Some(Err(error)) => {
                    self.count_error(&error);
                    sent |= !error.is_unwritten();
                    if !error.is_transient() {
                        // The store answered. If it refuses this one change, that says nothing about other keys; a table or
                        // a right that is missing concerns all of them.
                        refusal = match error.is_unwritten() {
                            true => UnavailableError::refused_early(RETRY_AFTER_MIN),
                            false => UnavailableError::no_reply(),
                        };
                        break;
                    }
                    refusal = match error.is_contended() {
                        // The store answered: this one row is locked.
                        true => UnavailableError::refused_early(RETRY_AFTER_MIN),
                        false => UnavailableError::no_reply(),
                    };
                }
                // In flight: it may yet be written. A begin that is only queued has been given up by the store.
                None => {
                    sent = true;
                    refusal = UnavailableError::no_reply();
                    break;
                }
            }
            let pause = backoff.next();
            if Instant::now() + pause >= deadline {
                break;
            }
            tokio::time::sleep(pause).await;
            at = Instant::now();
        }
        if sent {
            self.abandon_begin(ask.clone());
        }
        Err(refusal)
    }

    async fn send_begin(&self, change: &Arc<Change>, deadline: Instant) -> Result<Commit, StoreError> {
        if failpoint::at("begin.before").await == Hit::Error {
            return Err(StoreError::transient("failing", "begin", "a failpoint"));
        }
        let result = self.store.commit(change.clone(), Some(deadline.into_std())).await;
        match failpoint::at("begin.after").await {
            Hit::Lost => Err(StoreError::transient("failing", "begin", "a failpoint")),
            Hit::Go | Hit::Error => result,
        }
    }

    /// Writes over a begin whose fate is unknown, in the background, so that the begin loses if it arrives late.
    pub(super) fn abandon_begin(self: &Arc<Self>, ask: Arc<BeginRequest>) {
        let engine = self.clone();
        let identity = ask.identity.clone();
        self.background.spawn_give_up(&identity.tenant, ask.body_bytes(), async move {
            // If the record can't be read at all, the begin stays as it is, and lapses. A key that is retried every second
            // must not leave a task behind each time.
            if let Ok(known) = engine.load_until_done(ask.id, GiveUp::Soon).await {
                // The begin itself may still hold the row.
                let lost_reply_until = Some(Instant::now() + LOST_REPLY_HOLDS_FOR);
                let retry = Retry { lost_reply_until, ..Retry::new(GiveUp::Late) };
                engine.write_with(retry, known, |nonce| Event::GaveUp { ask: &ask, nonce }).await;
            }
        });
    }

    /// Decides on `event` and commits the change. After a lost race it decides again on the newer record; each decision
    /// gets a fresh nonce.
    ///
    /// Retries until the store answers, however long an outage lasts: the caller bounds its own patience. Only a write
    /// that the store refuses ends early, by `give_up`.
    pub(crate) async fn write_until_done<'a>(
        &self,
        known: Option<StoredRecord>,
        give_up: GiveUp,
        event: impl Fn(Nonce) -> Event<'a>,
    ) -> Settlement {
        self.write_with(Retry::new(give_up), known, event).await
    }

    async fn write_with<'a>(
        &self,
        mut retry: Retry,
        mut known: Option<StoredRecord>,
        event: impl Fn(Nonce) -> Event<'a>,
    ) -> Settlement {
        loop {
            let now = known.as_ref().map_or(Timestamp::default(), |stored| stored.now);
            let event = event(self.nonces.draw());
            let (change, decision) =
                match machine::decide(known.as_ref().map(|stored| &*stored.record), &event, now) {
                    Verdict::Keep(decision) => return Settlement::done(decision, known),
                    Verdict::Write(change, decision) => (change, decision),
                };
            let commit = match self.commit_until_done(&change, &mut retry).await {
                Ok(commit) => commit,
                Err(error) => {
                    return Settlement { decision: Decision::Later, stored: known, refused: Some(error) };
                }
            };
            match commit {
                Commit::Done(stamp) => {
                    count_lapses(&change);
                    self.waiters.notify(&change.id);
                    let stored = apply_change(&change, stamp, known.as_ref());
                    self.queue_evidence_check(stored.as_ref());
                    return Settlement::done(decision, stored.or(known));
                }
                Commit::Conflict(Some(stored)) if change.is_stored_as(&stored) => {
                    count_lapses(&change);
                    self.waiters.notify(&change.id);
                    self.queue_evidence_check(Some(&stored));
                    return Settlement::done(decision, Some(*stored));
                }
                // The record is unchanged, but a transaction has locked its row. The lock is its lease; a later round
                // takes over.
                commit if is_held_and_due(&change, &commit) => {
                    let Commit::Conflict(stored) = commit else { unreachable!("a record in the way") };
                    return Settlement::done(Decision::Ignored, stored.map(|stored| *stored));
                }
                Commit::Conflict(newer) => known = newer.map(|stored| *stored),
            }
        }
    }

    /// Sends the same change with the same nonce for as long as its fate is unknown.
    async fn commit_until_done(&self, change: &Arc<Change>, retry: &mut Retry) -> Result<Commit, StoreError> {
        loop {
            let at = Instant::now();
            match self.store.commit(change.clone(), None).await {
                // T1 (our first send) still commits on the server, over a connection that broke; T2 (this one) passes
                // over the locked row. If T1 commits after we have left, our claim holds a record that nothing runs.
                Ok(commit)
                    if retry.lost_reply_until.is_some_and(|until| at < until)
                        && is_held_and_due(change, &commit) => {}
                Ok(commit) => {
                    retry.refusals = 0;
                    self.observe(at, &commit);
                    return Ok(commit);
                }
                Err(error) => {
                    self.count_error(&error);
                    if !error.is_unwritten() {
                        retry.lost_reply_until = Some(Instant::now() + LOST_REPLY_HOLDS_FOR);
                    }
                    let record = change.id.short();
                    tracing::warn!(%record, error = &error as &dyn std::error::Error, "write failed");
                    if retry.gives_up(retry.is_refusal(&error, at)) {
                        // An earlier send may have been written without a reply. If the record can't be read either, this is an
                        // outage, which is waited out.
                        match self.load(change.id).await {
                            Ok(Some(stored)) if change.is_stored_as(&stored) => {
                                return Ok(Commit::Conflict(Some(Box::new(stored))));
                            }
                            Err(unread) if unread.is_transient() => {}
                            _ => {
                                let cause = &error as &dyn std::error::Error;
                                tracing::error!(%record, error = cause, "store refuses a write; write abandoned");
                                return Err(error);
                            }
                        }
                    }
                }
            }
            tokio::time::sleep(retry.backoff.next()).await;
        }
    }

    /// Loads a record, with retries until the store answers.
    ///
    /// # Errors
    ///
    /// Returns the store's error if the store rejects the read permanently, by `give_up`.
    pub(crate) async fn load_until_done(
        &self,
        id: RecordId,
        give_up: GiveUp,
    ) -> Result<Option<StoredRecord>, StoreError> {
        let mut retry = Retry::new(give_up);
        loop {
            let error = match self.load(id).await {
                Ok(stored) => return Ok(stored),
                Err(error) => error,
            };
            if retry.gives_up(!error.is_transient()) {
                let record = id.short();
                tracing::error!(%record, error = &error as &dyn std::error::Error, "record can't be read; read abandoned");
                return Err(error);
            }
            tokio::time::sleep(retry.backoff.next()).await;
        }
    }

    /// Queues a record that was just written as `unknown` for a look at earlier evidence about it.
    pub(super) fn queue_evidence_check(&self, written: Option<&StoredRecord>) {
        if let Some(stored) = written.filter(|stored| stored.record.state.is_unknown()) {
            // If the queue is full, the next round of upkeep finds the evidence.
            let _ = self.became_unknown.try_send(stored.record.id);
        }
    }

    fn observe(&self, at: Instant, commit: &Commit) {
        match commit {
            Commit::Done(stamp) => self.clock.observe(at, Instant::now(), stamp.now),
            Commit::Conflict(Some(stored)) => self.observe_read(at, stored.now),
            Commit::Conflict(None) => {}
        }
    }

    pub(super) fn count_error(&self, error: &StoreError) {
        counter!(telemetry::STORE_ERRORS).increment(1);
        tracing::debug!(error = error as &dyn std::error::Error, "the store failed");
        self.watch_error(error);
    }

    /// Notes an outage. No owner can renew its lease meanwhile, so a lease that has lapsed when the store is back may be of
    /// a live attempt. A locked row is no outage, and neither is a change that was refused at once.
    pub(super) fn watch_error(&self, error: &StoreError) {
        if error.is_transient() && !error.is_contended() && !error.is_unsent() {
            self.clock.note_outage(Instant::now());
        }
    }
}

/// The pauses and the refusals of one operation that is retried until it is done.
struct Retry {
    backoff: Backoff,
    give_up: GiveUp,
    /// Refusals in a row.
    refusals: u32,
    /// Instant until which a send without a reply may still hold the row.
    lost_reply_until: Option<Instant>,
}

impl Retry {
    fn new(give_up: GiveUp) -> Retry {
        Retry { backoff: Backoff::new(RETRY_MIN, RETRY_MAX), give_up, refusals: 0, lost_reply_until: None }
    }

    /// Returns whether the store has refused a write that was sent at `at`: permanently or, for upkeep, because the row is
    /// locked or the store takes no such write now. While an earlier send may still hold the row, a lock says nothing.
    fn is_refusal(&self, error: &StoreError, at: Instant) -> bool {
        let is_held = || self.lost_reply_until.is_some_and(|until| at < until);
        match self.give_up {
            GiveUp::Soon => !error.is_transient() || error.is_unsent() || error.is_contended() && !is_held(),
            GiveUp::Late => !error.is_transient(),
        }
    }

    /// Counts a failure. Returns whether the operation is to be abandoned.
    fn gives_up(&mut self, is_refusal: bool) -> bool {
        self.refusals = if is_refusal { self.refusals + 1 } else { 0 };
        let tries_max = match self.give_up {
            GiveUp::Soon => SOON_TRIES_MAX,
            GiveUp::Late => LATE_TRIES_MAX,
        };
        self.refusals >= tries_max
    }
}

/// Counts and logs the lapses and unknown outcomes that a committed change reports, whichever process noticed them.
pub(crate) fn count_lapses(change: &Change) {
    let lapses =
        change.history.iter().filter(|line| matches!(line.what, HistoryKind::Lapse | HistoryKind::Takeover));
    for line in lapses {
        tracing::warn!(record = %change.id.short(), detail = line.detail, "lease lapsed");
        counter!(telemetry::ZOMBIE_KEYS).increment(1);
    }
    let became =
        change.history.iter().any(|line| matches!(line.what, HistoryKind::Lapse | HistoryKind::Unknown));
    if let Some(draft) = change.draft.as_ref().filter(|draft| became && draft.state.is_unknown()) {
        telemetry::became_unknown(&change.id, draft);
    }
}

/// Returns whether the record is unchanged and still due, but the change was refused: a transaction holds its row.
fn is_held_and_due(change: &Change, commit: &Commit) -> bool {
    matches!(commit, Commit::Conflict(Some(stored))
        if change.expect == Expect::Due(stored.record.version) && stored.record.is_due(stored.now))
}

/// Returns what is stored after the store has committed `change`, or `None` for a change that leaves the record alone.
pub(crate) fn apply_change(
    change: &Change,
    stamp: Stamp,
    before: Option<&StoredRecord>,
) -> Option<StoredRecord> {
    change.stored_after(stamp, before)
}

/// Returns whether the attempt that began as `begun` still owns the record and may renew it.
pub(crate) fn still_owns(stored: &StoredRecord, begun: &Record) -> bool {
    stored.record.owner == begun.owner && stored.record.state.is_running()
}

/// First pause after a failed write: about one commit of a healthy disk.
const RETRY_MIN: Duration = Duration::from_millis(10);

/// Longest pause within a begin, which has only `begin_timeout` in all.
const BEGIN_RETRY_MAX: Duration = Duration::from_millis(200);

/// Longest pause of a write that is retried until it is done: the end of an outage is noticed within seconds.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Refusals in a row before upkeep abandons a write. The next round tries again, and one such record must not hold up the
/// others: the pauses of six tries take a third of a second, and a store waits a quarter of a second for a locked row.
const SOON_TRIES_MAX: u32 = 6;

/// Permanent rejections in a row before an attempt abandons its result: about a day. By then a password, a right or a table
/// that was taken away by mistake is back; but what can't be stored at all must not be sent indefinitely.
const LATE_TRIES_MAX: u32 = 43_200;

/// Time that a send whose reply was lost may hold its row. PostgreSQL ends a session within seconds of losing its
/// connection, unless its commit waits for a standby; an operator's own lock must not hold up a sweep for longer.
const LOST_REPLY_HOLDS_FOR: Duration = Duration::from_secs(30);

/// Records that may wait for a look at their evidence. A crash of the upstream makes some thousands of records `unknown` at
/// once.
pub(super) const BECAME_UNKNOWN_MAX: usize = 4096;
