//! How the engine writes: begins with a deadline, ends that go on until the store answers, and the count of both, so
//! that nothing is unbounded and a shutdown can wait.
//!
//! It must not know why something is written: `ibid_core::machine` does.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ibid_core::change::{BodyKind, Change, Commit, Expect, Happened, Stamp, Stored};
use ibid_core::fingerprint::Secrets;
use ibid_core::machine::{self, Ask, Decision, Event, Role, Verdict};
use ibid_core::policy::Policy;
use ibid_core::record::{Nonce, Record, State};
use ibid_core::response::Response;
use ibid_core::scope::RecordId;
use ibid_core::store::{Renewed, Store, StoreError};
use ibid_core::time::Timestamp;
use metrics::counter;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::Unavailable;
use super::batch::{Batcher, Unsaid};
use super::breaker::Breaker;
use super::cache::Cache;
use super::clock_watch::ClockWatch;
use super::deadlines::Deadlines;
use super::identity_watch::IdentityWatch;
use super::nonces::Nonces;
use super::tenants::Tenants;
use super::waiters::Waiters;
use crate::failpoint::{self, Hit};
use crate::outbox::told::Desks;
use crate::outcome::StoredResponse;
use crate::telemetry;
use crate::transaction::flights::Flights;
use crate::upkeep::{Deliveries, Places, Ran, Registered, Resumes};

pub(crate) struct Inner {
    /// Where the engine was started, and where what outlives its caller goes on.
    pub(crate) runtime: Handle,
    pub(crate) store: Arc<dyn Store>,
    pub(super) secrets: Arc<Secrets>,
    pub(super) identity: IdentityWatch,
    pub(super) batcher: Batcher,
    pub(super) cache: Cache,
    pub(super) waiters: Waiters,
    pub(crate) breaker: Breaker,
    pub(super) clock: ClockWatch,
    pub(crate) deadlines: Deadlines,
    pub(super) nonces: Nonces,
    pub(crate) begin_timeout: Duration,
    pub(crate) finish_wait: Duration,
    pub(super) attempts_max: usize,
    /// Keys that are being reserved inside callers' transactions.
    pub(crate) flights: Flights,
    /// Who sends duplicates.
    pub(crate) tenants: Tenants,
    pub(super) duplicate_rate: f64,
    /// When the chores last ran here.
    pub(crate) ran: Ran,
    /// Who runs lapsed requests here.
    pub(crate) resumes: Resumes,
    /// How many accepted requests run here, and the news of another.
    pub(crate) deliveries: Deliveries,
    /// Who asks about unknown records here.
    pub(crate) finder: Registered,
    /// Where the reaper goes on.
    pub(crate) places: Places,
    /// Told when Effects were enqueued by this process: its worker need not wait for its next look.
    pub(crate) enqueued: Notify,
    /// Who writes what follows from evidence on Effects here.
    pub(crate) desks: Desks,
    /// Records that became unknown: something may have been heard of them before.
    pub(super) doubts: mpsc::Sender<RecordId>,
    /// Writes that go on without a caller: queued finishes and releases.
    pub(super) loose: Loose,
}

/// Counts background writes, bounds them, and lets a shutdown wait for them.
#[derive(Default)]
pub(super) struct Loose {
    /// Attempts that live, counted so that a shutdown can wait for those whose client has gone.
    pub(super) attempts: AtomicUsize,
    /// Begins under way, which may yet become Attempts.
    pub(super) begins: AtomicUsize,
    pub(super) count: AtomicUsize,
    bytes: AtomicUsize,
    pub(super) changed: Notify,
}

/// What came of an owner's or upkeep's write.
pub(crate) struct Settlement {
    pub(crate) decision: Decision,
    /// What is stored now, as far as it is known.
    pub(crate) stored: Option<Stored>,
    /// Why it was given up: the store won't take it, however often it is sent. Then nothing is known to be written, and
    /// the decision is [`Decision::Later`].
    pub(crate) refused: Option<StoreError>,
}

impl Settlement {
    fn done(decision: Decision, stored: Option<Stored>) -> Settlement {
        Settlement { decision, stored, refused: None }
    }
}

impl Inner {
    /// Writes a begin, again and with the same nonce while its fate is unknown, until the deadline. It is `at` now.
    pub(super) async fn commit_begin(
        self: &Arc<Self>,
        ask: &Arc<Ask>,
        change: &Arc<Change>,
        mut at: Instant,
        deadline: Instant,
    ) -> Result<Commit, Unavailable> {
        let mut pause = RETRY_MIN;
        let mut sent = false;
        loop {
            let sending = async {
                if failpoint::at("begin.before").await == Hit::Error {
                    return Err(Unsaid::Store(StoreError::transient("failing", "begin", "a failpoint")));
                }
                let fate = self.batcher.commit(change.clone(), at, Some(deadline)).await;
                match failpoint::at("begin.after").await {
                    Hit::Lost => Err(Unsaid::Store(StoreError::transient("failing", "begin", "a failpoint"))),
                    Hit::Go | Hit::Error => fate,
                }
            };
            match self.deadlines.within(Some(deadline), sending).await {
                Some(Ok(commit)) => {
                    self.observe(at, &commit);
                    return Ok(commit);
                }
                Some(Err(Unsaid::Full { oldest })) if !sent => return Err(Unavailable::unasked(oldest)),
                Some(Err(Unsaid::Full { .. } | Unsaid::Unsent)) => break,
                Some(Err(Unsaid::Store(error))) => {
                    self.count_error(&error);
                    sent |= !error.is_unwritten();
                    if !error.is_transient() {
                        break;
                    }
                }
                // Still queued or under way: it may be written yet.
                None => {
                    sent = true;
                    break;
                }
            }
            let nap = pause.mul_f64(0.75 + 0.5 * jitter());
            if Instant::now() + nap >= deadline {
                break;
            }
            tokio::time::sleep(nap).await;
            pause = (pause * 2).min(RETRY_MAX);
            at = Instant::now();
        }
        if sent {
            self.give_up(ask.clone());
        }
        Err(Unavailable::unanswered())
    }

    /// Puts something in the place of a begin whose fate is unknown, so that it loses if it arrives late.
    pub(super) fn give_up(self: &Arc<Self>, ask: Arc<Ask>) {
        let inner = self.clone();
        self.loosely(async move {
            // If it can't be read for good, the begin stays as it is, and lapses.
            if let Ok(known) = inner.load_patiently(ask.id).await {
                inner.settle_stubbornly(known, |nonce| Event::GaveUp { ask: &ask, nonce }).await;
            }
        });
    }

    /// One write of upkeep: it goes on until the store answers, however long that is away. What the store refuses for good
    /// is given up soon, and said: the next round comes to the record again.
    pub(crate) async fn settle_patiently<'a>(
        &self,
        known: Option<Stored>,
        event: impl Fn(Nonce) -> Event<'a>,
    ) -> Settlement {
        self.settle(known, event, LASTING_TRIES_MAX).await
    }

    /// One write of an owner, whose news nobody else has: what the store refuses for good is given up late.
    pub(crate) async fn settle_stubbornly<'a>(
        &self,
        known: Option<Stored>,
        event: impl Fn(Nonce) -> Event<'a>,
    ) -> Settlement {
        self.settle(known, event, OWNERS_LASTING_TRIES_MAX).await
    }

    /// Decide, commit, decide again on a lost race, each time under a nonce of its own. The caller bounds its own patience;
    /// only `lasting_max` failures in a row that repetition won't mend end it here.
    async fn settle<'a>(
        &self,
        mut known: Option<Stored>,
        event: impl Fn(Nonce) -> Event<'a>,
        lasting_max: u32,
    ) -> Settlement {
        let (mut pause, mut lasting) = (RETRY_MIN, 0);
        loop {
            let now = known.as_ref().map_or(Timestamp::default(), |stored| stored.now);
            let event = event(self.nonces.draw());
            let (change, decision) =
                match machine::decide(known.as_ref().map(|stored| &*stored.record), &event, now) {
                    Verdict::Keep(decision) => return Settlement::done(decision, known),
                    Verdict::Write(change, decision) => (change, decision),
                };
            // The same Change with the same nonce for as long as its fate is unknown.
            let commit = loop {
                let at = Instant::now();
                match self.batcher.commit(change.clone(), at, None).await {
                    Ok(commit) => {
                        lasting = 0;
                        self.observe(at, &commit);
                        break commit;
                    }
                    Err(Unsaid::Store(error)) => {
                        self.count_error(&error);
                        lasting = if error.is_transient() { 0 } else { lasting + 1 };
                        let (record, cause) = (change.id.short(), &error as &dyn std::error::Error);
                        if lasting >= lasting_max {
                            tracing::error!(%record, error = cause, "the store refuses a write for good; it is given up");
                            return Settlement {
                                decision: Decision::Later,
                                stored: known,
                                refused: Some(error),
                            };
                        }
                        tracing::warn!(%record, error = cause, "a write is retried");
                    }
                    Err(Unsaid::Full { .. } | Unsaid::Unsent) => {}
                }
                tokio::time::sleep(pause.mul_f64(0.75 + 0.5 * jitter())).await;
                pause = (pause * 2).min(PATIENT_RETRY_MAX);
            };
            match commit {
                Commit::Done(stamp) => {
                    noticed(&change);
                    self.waiters.tell(&change.id);
                    let stored = after(&change, stamp, known.as_ref());
                    self.wrote(stored.as_ref());
                    return Settlement::done(decision, stored.or(known));
                }
                Commit::Conflict(Some(stored)) if change.is_stored_as(&stored) => {
                    noticed(&change);
                    self.waiters.tell(&change.id);
                    self.wrote(Some(&stored));
                    return Settlement::done(decision, Some(*stored));
                }
                // Nothing has changed, but somebody holds the row: its lock is its lease, and a takeover comes again later.
                Commit::Conflict(Some(stored))
                    if change.expect == Expect::Due(stored.record.version)
                        && stored.record.is_due(stored.now) =>
                {
                    return Settlement::done(Decision::Ignored, Some(*stored));
                }
                Commit::Conflict(newer) => known = newer.map(|stored| *stored),
            }
        }
    }

    /// A completed record's answer, decoded; kept in the cache.
    ///
    /// `read_at` is from before it was read: what has passed since is never counted too short.
    pub(crate) fn replay(&self, stored: Stored, read_at: Instant) -> Option<StoredResponse> {
        let response = match Response::from_bytes(stored.answer.as_deref()?) {
            Ok(response) => Arc::new(response),
            Err(error) => {
                tracing::error!(record = %stored.record.id.short(), %error, "a stored answer can't be read");
                return None;
            }
        };
        let record = stored.record;
        self.cache.put(&record, &response, read_at, stored.now);
        Some(StoredResponse { record, response })
    }

    /// Keeps what this process has just completed.
    pub(crate) fn remember(
        &self,
        record: Arc<Record>,
        response: Arc<Response>,
        read_at: Instant,
        now: Timestamp,
    ) -> StoredResponse {
        self.cache.put(&record, &response, read_at, now);
        self.waiters.tell(&record.id);
        StoredResponse { record, response }
    }

    pub(crate) async fn load(&self, id: RecordId) -> Result<Option<Stored>, StoreError> {
        Ok(self.load_all(vec![id]).await?.pop().flatten())
    }

    /// Loads several records, each at the place of its id.
    pub(crate) async fn load_all(&self, ids: Vec<RecordId>) -> Result<Vec<Option<Stored>>, StoreError> {
        let at = Instant::now();
        let loaded = self.store.load(ids).await.inspect_err(|error| self.count_error(error))?;
        if let Some(stored) = loaded.iter().flatten().next() {
            self.clock.observe(at, stored.now);
        }
        Ok(loaded)
    }

    /// Records in `state` whose due instant has passed. Upkeep may be the first to see that the clock has jumped.
    pub(crate) async fn due(&self, state: State, limit: u32) -> Result<Vec<Stored>, StoreError> {
        let at = Instant::now();
        let due = self.store.due(state, limit).await.inspect_err(|error| self.watch_error(error))?;
        if let Some(first) = due.first() {
            self.clock.observe(at, first.now);
        }
        Ok(due)
    }

    /// The record, once the store answers; an error if it never will.
    pub(crate) async fn load_patiently(&self, id: RecordId) -> Result<Option<Stored>, StoreError> {
        let (mut pause, mut lasting) = (RETRY_MIN, 0);
        loop {
            let error = match self.load(id).await {
                Ok(stored) => return Ok(stored),
                Err(error) => error,
            };
            lasting = if error.is_transient() { 0 } else { lasting + 1 };
            if lasting >= OWNERS_LASTING_TRIES_MAX {
                let record = id.short();
                tracing::error!(%record, error = &error as &dyn std::error::Error, "a record can't be read");
                return Err(error);
            }
            tokio::time::sleep(pause.mul_f64(0.75 + 0.5 * jitter())).await;
            pause = (pause * 2).min(PATIENT_RETRY_MAX);
        }
    }

    /// Moves the lease's end on; none if the store did not answer.
    pub(crate) async fn renew(&self, record: &Record) -> Option<Renewed> {
        let renewed = self.store.renew(vec![(record.id, record.version)]).await;
        renewed.inspect_err(|error| self.count_error(error)).ok()?.pop()
    }

    /// As what a request comes under these rules.
    pub(crate) fn role(&self, policy: &Policy) -> Role {
        if self.is_clock_unsure(policy.lease) { Role::Careful } else { Role::Caller }
    }

    /// Trusts the cache about this record no longer: an operator has written it.
    pub(crate) fn forget(&self, id: &RecordId) {
        self.cache.forget(id);
    }

    /// Wakes those who wait for this record.
    pub(crate) fn tell(&self, id: &RecordId) {
        self.waiters.tell(id);
    }

    /// Says whether begins are refused, to those who came to count after it was so.
    pub(crate) fn tell_breaker(&self) {
        self.breaker.tell();
    }

    /// Whether a takeover to run must wait because the store's clock has just jumped.
    pub(crate) fn is_clock_unsure(&self, lease: Duration) -> bool {
        self.clock.is_unsure(Instant::now(), lease)
    }

    /// Lets a write go on without a caller.
    pub(crate) fn loosely(self: &Arc<Self>, write: impl Future<Output = ()> + Send + 'static) {
        self.loosely_with(0, write);
    }

    /// The same, of a write that holds so many bytes.
    pub(crate) fn loosely_with(
        self: &Arc<Self>,
        bytes: usize,
        write: impl Future<Output = ()> + Send + 'static,
    ) {
        let Some(place) = self.loose_place(bytes) else { return };
        tokio::spawn(async move {
            write.await;
            drop(place);
        });
    }

    /// A place for a write that waits for the store. Past the bounds there is none, and the write is dropped: then the
    /// lease lapses, and the record says by itself that nobody knows.
    fn loose_place(self: &Arc<Self>, bytes: usize) -> Option<LoosePlace> {
        let count = self.loose.count.fetch_add(1, Ordering::SeqCst) + 1;
        let held = self.loose.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        let place = LoosePlace { inner: self.clone(), bytes };
        if count > LOOSE_MAX || held > LOOSE_BYTES_MAX {
            tracing::error!(
                queued = count,
                bytes = held,
                "too many writes wait for the store; one is dropped"
            );
            return None;
        }
        Some(place)
    }

    /// An Attempt began to live.
    pub(crate) fn attempt_lives(self: &Arc<Self>) -> Living {
        Living::count(self, |loose| &loose.attempts)
    }

    /// A begin is under way.
    pub(crate) fn begins(self: &Arc<Self>) -> Living {
        Living::count(self, |loose| &loose.begins)
    }

    fn observe(&self, at: Instant, commit: &Commit) {
        match commit {
            Commit::Done(stamp) => self.clock.observe(at, stamp.now),
            Commit::Conflict(Some(stored)) => self.clock.observe(at, stored.now),
            Commit::Conflict(None) => {}
        }
    }

    fn count_error(&self, error: &StoreError) {
        counter!(telemetry::STORE_ERRORS).increment(1);
        tracing::debug!(error = error as &dyn std::error::Error, "the store failed");
        self.watch_error(error);
    }

    /// While the store is away nobody can renew: what has lapsed when it is back may be alive.
    fn watch_error(&self, error: &StoreError) {
        if error.is_transient() {
            self.clock.failed(Instant::now());
        }
    }
}

/// Held by a begin or an Attempt for as long as it lives, so that a shutdown can wait for it.
pub(crate) struct Living {
    inner: Arc<Inner>,
    counter: fn(&Loose) -> &AtomicUsize,
}

impl Living {
    fn count(inner: &Arc<Inner>, counter: fn(&Loose) -> &AtomicUsize) -> Living {
        counter(&inner.loose).fetch_add(1, Ordering::SeqCst);
        Living { inner: inner.clone(), counter }
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        // Whoever waits, waits for the last one.
        if (self.counter)(&self.inner.loose).fetch_sub(1, Ordering::SeqCst) == 1 {
            self.inner.loose.changed.notify_waiters();
        }
    }
}

/// Held by a write that waits for the store.
struct LoosePlace {
    inner: Arc<Inner>,
    bytes: usize,
}

impl Drop for LoosePlace {
    fn drop(&mut self) {
        self.inner.loose.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        if self.inner.loose.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.inner.loose.changed.notify_waiters();
        }
    }
}

/// Counts and logs a lapse or an unknown outcome that a written Change tells of, whoever was first to notice it.
pub(crate) fn noticed(change: &Change) {
    let lapses =
        change.history.iter().filter(|line| matches!(line.what, Happened::Lapse | Happened::Takeover));
    for line in lapses {
        tracing::warn!(record = %change.id.short(), detail = line.detail, "a lease lapsed");
        counter!(telemetry::ZOMBIE_KEYS).increment(1);
    }
    let became = change.history.iter().any(|line| matches!(line.what, Happened::Lapse | Happened::Unknown));
    if let Some(draft) = change.draft.as_ref().filter(|draft| became && draft.state == State::Unknown) {
        telemetry::became_unknown(&change.id, draft);
    }
}

/// What is stored once the store took `change`; none for a Change that leaves the record alone.
pub(crate) fn after(change: &Change, stamp: Stamp, before: Option<&Stored>) -> Option<Stored> {
    let record = change.applied(stamp, before.map(|stored| &*stored.record))?;
    let written =
        change.bodies.iter().find(|body| body.kind == BodyKind::Answer).map(|body| body.data.clone());
    let kept = before.and_then(|stored| stored.answer.clone()).filter(|_| !change.clears_bodies);
    Some(Stored { record, answer: written.or(kept), now: stamp.now })
}

/// Whether the record is still this Attempt's to renew.
pub(crate) fn still_owns(stored: &Stored, begun: &Record) -> bool {
    stored.record.owner == begun.owner && stored.record.state == State::InProgress
}

/// A fresh nonce. 64 random bits: among a thousand million writes of one counter value two are alike once in forty.
/// Versions also carry the counter, so even then both would have to meet in one record.
pub(crate) fn nonce() -> Nonce {
    Nonce(u64::from_be_bytes(random()))
}

pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without the system's randomness no key can be reserved safely, and no later call would fare better.
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes
}

/// A number from 0 to 1, so that those who wait do not come back all at once.
pub(crate) fn jitter() -> f64 {
    f64::from(u16::from_be_bytes(random())) / f64::from(u16::MAX)
}

/// First pause after a failed write: about one commit of a healthy disk.
const RETRY_MIN: Duration = Duration::from_millis(10);

/// Longest pause within a begin, which has only `begin_timeout` in all.
const RETRY_MAX: Duration = Duration::from_millis(200);

/// Longest pause of a write that must succeed some day: an outage's end is noticed within seconds.
const PATIENT_RETRY_MAX: Duration = Duration::from_secs(2);

/// How often in a row upkeep sends what the store refuses for good. It comes again by itself, and one such record must not
/// hold up the round of all others: a third of a second.
const LASTING_TRIES_MAX: u32 = 6;

/// The same for what only this process knows, an answer above all: a day. A password, a right or a table that was taken
/// from us by mistake is given back by then; but what can't be stored at all must not be sent for ever.
const OWNERS_LASTING_TRIES_MAX: u32 = 43_200;

/// Writes that may wait for a lost store. At the default connection cap each connection has one, and some to spare.
const LOOSE_MAX: usize = 16_384;

/// Bytes of answers in them: what a small machine can spare during an outage.
const LOOSE_BYTES_MAX: usize = 64 << 20;
