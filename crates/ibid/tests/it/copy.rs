//! Copies between stores in memory: every step may fail, two commands may run at once, and never are both stores open. Tokio's
//! time is paused, so waits of half a minute take no time.

mod step_store;
mod unfit_rows;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use ibid::copy::{CopiedPart, CopyEnd, CopyError, CopyReport, CopyStep, cancel, copy};
use ibid::engine::StartError;
use ibid::identity::change::{load_setting, retire};
use ibid::identity::{IdentityError, IdentityPhase, IdentitySetting};
use ibid::outcome::{Begin, Outcome};
use ibid::store::clock::{Clock, ClockSetter};
use ibid::store::memory::MemoryStore;
use ibid::{Ibid, Policy, Response, Settings};
use ibid_core::change::{BodyKind, Commit, HistoryKind, LoadedBody, StoredBody};
use ibid_core::evidence::{EventName, Evidence, EvidenceStore, EvidenceSubject};
use ibid_core::machine::Observation;
use ibid_core::record::{RecordDetails, State};
use ibid_core::scope::RecordId;
use ibid_core::store::{BodyStore, BrowseStore, SetOutcome, Store, StoreError};
use ibid_core::time::Timestamp;
use ibid_testkit::contract::{LONG, TestRecord, answering, draft, insert, load, put, replace, telling};
use ibid_testkit::faults::FaultyStore;
use tokio::sync::Notify;

use self::step_store::{Gate, StepStore};
use crate::request_fixture::ask;

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// The gates around a batch of records.
const BEFORE_IMPORT: &str = "before a batch";
const AFTER_IMPORT: &str = "after a batch";

/// Two stores, and the calls that reach them.
struct TwoStores {
    source: Arc<MemoryStore>,
    target: Arc<MemoryStore>,
    hands: [ClockSetter; 2],
    /// Calls that are answered before the rest fails.
    budget: AtomicUsize,
    /// `true` if the first call past the budget is done, and its reply is lost.
    loses_reply: bool,
    /// `true` if the calls behind the first failure are answered again.
    recovers: bool,
    /// State of the generator that decides how long a call waits; zero: none waits.
    dice: AtomicUsize,
}

impl TwoStores {
    /// Makes a source with one completed record, and a target whose clock is ahead by `ahead`.
    async fn new(ahead: Duration) -> TwoStores {
        let (source, hand) = Clock::manual(START);
        let (target, other_hand) = Clock::manual(START.after(ahead));
        let world = TwoStores {
            source: Arc::new(MemoryStore::new(source)),
            target: Arc::new(MemoryStore::new(target)),
            hands: [hand, other_hand],
            budget: AtomicUsize::new(usize::MAX),
            loses_reply: false,
            recovers: false,
            dice: AtomicUsize::new(0),
        };
        let ibid = start(&world.source).await.expect("it starts");
        pay(&ibid, "k").await;
        world
    }

    /// Adds a record with everything that can belong to one. Returns its name.
    async fn add_unknown(&self) -> TestRecord {
        let name = TestRecord::fresh();
        let mut unknown = draft(&name, State::Unknown);
        (unknown.due_in, unknown.expires_in, unknown.purge_in) = (Some(LONG), Some(LONG * 2), Some(LONG * 3));
        unknown.note = RecordDetails { absent_at: Some(START.as_micros()), ..RecordDetails::default() };
        let mut change =
            telling(answering(insert(&name, unknown), b"late"), HistoryKind::Unknown, "it was cut");
        change.bodies.push(StoredBody { kind: BodyKind::Request, data: Bytes::from_static(b"request") });
        put(&*self.source, &change).await;
        self.source.insert_evidence(evidence_about(name.id), LONG).await.expect("it is stored");
        name
    }

    /// Settles the record in the source, as a node does whose answer comes late.
    async fn settle(&self, name: &TestRecord) {
        let before = load(&*self.source, name.id).await.expect("it is stored").record;
        let mut change = answering(replace(&before, draft(name, State::Completed)), b"paid");
        change = telling(change, HistoryKind::LateAnswer, "it was paid");
        (change.clears_bodies, change.uses) = (true, Some(event_about(name.id)));
        put(&*self.source, &change).await;
    }

    /// Returns the two ends of a copy, whose calls count.
    fn ends(self: &Arc<TwoStores>) -> (CopyEnd, CopyEnd) {
        self.ends_behind(None)
    }

    /// Returns the two ends of a copy that waits at a gate.
    fn ends_behind(self: &Arc<TwoStores>, gate: Option<&Arc<Gate>>) -> (CopyEnd, CopyEnd) {
        let end = |inner: &Arc<MemoryStore>, display_url: &str, gate| {
            CopyEnd::new(Arc::new(StepStore { inner: inner.clone(), world: self.clone(), gate }), display_url)
        };
        (end(&self.source, "memory:a", None), end(&self.target, "memory:b", gate.cloned()))
    }

    async fn copy(self: &Arc<TwoStores>) -> Result<CopyReport, CopyError> {
        let (source, target) = self.ends();
        copy(&source, &target, |_| {}).await
    }

    async fn cancel(self: &Arc<TwoStores>) -> Result<(), CopyError> {
        let (source, target) = self.ends();
        cancel(&source, &target).await
    }

    /// Returns whether processes may start on the source, and on the target.
    fn open(&self) -> (bool, bool) {
        let is_open = |store: &MemoryStore| {
            let text = store.setting("identity").now_or_never().expect("memory never waits").expect("a read");
            text.map(|text| IdentitySetting::parse(&text).expect("it can be read").check_open().is_ok())
        };
        // A target without an identity has no records yet: a start on it would be refused nothing, and lose nothing.
        (is_open(&self.source).expect("it was used"), is_open(&self.target).unwrap_or(false))
    }

    fn assert_one_open(&self) {
        assert_ne!(self.open(), (true, true), "both stores are open");
    }

    /// Waits if the test shuffles calls, and fails past the budget. Returns whether the reply is lost.
    async fn step(&self) -> Result<bool, StoreError> {
        let dice = self.dice.load(Ordering::SeqCst);
        if dice > 0 {
            let next = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.dice.store(next | 1, Ordering::SeqCst);
            for _ in 0..next >> 60 {
                tokio::task::yield_now().await;
            }
        }
        let left = self.budget.load(Ordering::SeqCst);
        if left == usize::MAX {
            return Ok(false);
        }
        let next = if left == 0 && self.recovers { usize::MAX } else { left.saturating_sub(1) };
        self.budget.store(next, Ordering::SeqCst);
        match (left, self.loses_reply) {
            (0, _) => Err(StoreError::transient("memory", "anything", "it died")),
            (1, true) => Ok(true),
            _ => Ok(false),
        }
    }
}

fn event_about(id: RecordId) -> EventName {
    EventName { source: "psp".into(), event: id.to_string() }
}

fn evidence_about(id: RecordId) -> Evidence {
    let (name, about) = (event_about(id), EvidenceSubject::Record(id));
    Evidence { name, about, owner: None, what: Observation::NotExecuted, age: Duration::ZERO }
}

async fn start(store: &Arc<MemoryStore>) -> Result<Ibid, StartError> {
    Ibid::start(store.clone(), Settings::default()).await
}

async fn pay(ibid: &Ibid, key: &str) {
    let Begin::Run(mut attempt) =
        ibid.begin(ask(ibid, "shop", key, Policy::default())).await.expect("it begins")
    else {
        panic!("`{key}` is new");
    };
    attempt.ensure_lease().await.expect("the lease is new");
    let done = attempt.finish(Response::plain(201, "text/plain", "paid".to_owned())).await;
    assert!(matches!(done, Outcome::Completed(_)), "{done:?}");
}

/// Panics unless a retry of the payment is answered with the stored response.
async fn assert_replays(store: &Arc<MemoryStore>) {
    let ibid = start(store).await.expect("it starts");
    let retried = ibid.begin(ask(&ibid, "shop", "k", Policy::default())).await.expect("an answer");
    assert!(matches!(retried, Begin::Skip(Outcome::Completed(_))), "{retried:?}");
}

#[tokio::test(start_paused = true)]
async fn a_copy_takes_everything_and_shifts_its_instants() {
    let day = Duration::from_secs(86_400);
    let world = Arc::new(TwoStores::new(day).await);
    let name = world.add_unknown().await;
    let before = load(&*world.source, name.id).await.expect("it is stored").record;
    let report = world.copy().await.expect("it is copied");
    assert_eq!(report.shift_us, 86_400_000_000);
    assert_eq!(
        report.rows,
        [
            (CopiedPart::Evidence, 1),
            (CopiedPart::Effects, 0),
            (CopiedPart::Records, 2),
            (CopiedPart::History, 1)
        ]
    );
    let after = load(&*world.target, name.id).await.expect("it is there").record;
    assert_eq!((after.version, after.birth), (before.version, before.birth));
    let instants =
        |record: &ibid::Record| [record.due_at, record.expires_at, record.purge_at, Some(record.created_at)];
    assert_eq!(instants(&after), instants(&before).map(|at| at.map(|at| at.after(day))));
    assert_eq!(after.note.absent_at, Some(START.after(day).as_micros()));
    let bodies = BodyStore::bodies(&*world.target, name.id, after.birth).await.expect("bodies");
    let request = LoadedBody { kind: BodyKind::Request.code(), data: Bytes::from_static(b"request") };
    assert_eq!(bodies, [request]);
    let history = world.target.history(name.id).await.expect("a history");
    assert_eq!(history.iter().map(|line| line.at).collect::<Vec<_>>(), [START.after(day)]);
    let (kept, is_new) = world.target.insert_evidence(evidence_about(name.id), LONG).await.expect("a read");
    assert!(!is_new && kept.as_of == START.after(day), "{kept:?}");
    for setting in ["secret", "secrets"] {
        let of = async |store: &MemoryStore| store.setting(setting).await.expect("a setting");
        assert_eq!(of(&world.target).await, of(&world.source).await, "{setting}");
    }
    assert_replays(&world.target).await;
    let refused = start(&world.source).await.map(drop);
    assert!(matches!(refused, Err(StartError::Identity(IdentityError::Closed(_)))), "{refused:?}");
}

/// Every call to either store fails once, before it is done or with a lost reply. A record moves on, and the copy continues.
#[tokio::test(start_paused = true)]
async fn a_copy_that_fails_at_any_call_continues() {
    each_failure(async |world, moving| {
        world.settle(moving).await;
        world.copy().await.expect("it continues");
        assert_eq!(world.open(), (false, true));
        assert_replays(&world.target).await;
        let copied = load(&*world.target, moving.id).await.expect("it is copied");
        let settled = load(&*world.source, moving.id).await.expect("it is stored");
        match copied.record.state {
            // It was copied before it was settled.
            State::Unknown => assert_eq!(copied.body(), Some(&b"late"[..])),
            _ => assert_eq!((&copied.record, copied.body()), (&settled.record, settled.body())),
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_fails_at_any_call_is_cancelled_or_has_ended() {
    each_failure(async |world, _| {
        match world.cancel().await {
            Ok(()) => assert_replays(&world.source).await,
            // The target was not marked yet.
            Err(CopyError::NoCopy) => assert_eq!(world.open(), (true, false)),
            Err(CopyError::Ended) => assert_replays(&world.target).await,
            Err(other) => panic!("{other:?}"),
        }
        let (source, target) = world.open();
        assert_ne!(source, target, "one of them is open");
    })
    .await;
}

/// Of every two calls to the stores that follow each other, the first one's reply is lost, and the second fails.
#[tokio::test(start_paused = true)]
async fn a_copy_outlasts_a_moments_failure_of_any_call() {
    for calls in 0.. {
        let world =
            Arc::new(TwoStores { loses_reply: true, recovers: true, ..TwoStores::new(Duration::ZERO).await });
        world.add_unknown().await;
        world.budget.store(calls, Ordering::SeqCst);
        world.copy().await.unwrap_or_else(|error| panic!("call {calls}: {error:?}"));
        assert_eq!(world.open(), (false, true), "{calls}");
        assert_replays(&world.target).await;
        if world.budget.load(Ordering::SeqCst) != usize::MAX {
            assert!(calls > 20, "each of {calls} calls failed");
            break;
        }
    }
}

/// T1 (this copy) sends a batch and is not answered; T2 takes over. T1 must not send it again.
#[tokio::test(start_paused = true)]
async fn a_batch_is_sent_again_only_by_its_holder() {
    let world = Arc::new(TwoStores { recovers: true, ..TwoStores::new(Duration::ZERO).await });
    let gate = Gate::new(BEFORE_IMPORT);
    let (source, target) = world.ends_behind(Some(&gate));
    let meanwhile = async {
        gate.is_reached.notified().await;
        world.copy().await.expect("it is copied");
        world.budget.store(0, Ordering::SeqCst);
        gate.opens.notify_one();
    };
    // A second batch would wait at the gate.
    let late = tokio::time::timeout(LONG, copy(&source, &target, |_| {}));
    let (late, ()) = tokio::join!(late, meanwhile);
    assert!(matches!(late, Ok(Err(CopyError::AnotherProcess))), "{late:?}");
    assert_replays(&world.target).await;
}

/// Fails a copy at each of its calls in turn, and lets `then` end it. It gets the name of a record whose outcome is unknown.
async fn each_failure(mut then: impl AsyncFnMut(&Arc<TwoStores>, &TestRecord)) {
    for loses_reply in [false, true] {
        for calls in 0.. {
            let world = Arc::new(TwoStores { loses_reply, ..TwoStores::new(Duration::ZERO).await });
            let moving = world.add_unknown().await;
            world.budget.store(calls, Ordering::SeqCst);
            let result = world.copy().await;
            world.assert_one_open();
            world.budget.store(usize::MAX, Ordering::SeqCst);
            if result.is_ok() {
                assert!(calls > 20, "it failed at each of {calls} calls before");
                break;
            }
            then(&world, &moving).await;
        }
    }
}

/// T1 (a copy) is stopped while it copies the secrets; T2 takes over and opens the target, where a node registers a secret; T1
/// wakes up.
#[tokio::test(start_paused = true)]
async fn a_late_copier_leaves_the_targets_settings_alone() {
    for setting in ["secret", "secrets"] {
        let world = Arc::new(TwoStores::new(Duration::ZERO).await);
        let gate = Gate::new(setting);
        let (source, target) = world.ends_behind(Some(&gate));
        let registered = Bytes::from_static(b"registered since");
        let meanwhile = async {
            gate.is_reached.notified().await;
            world.copy().await.expect("it is copied");
            let copied = world.target.setting(setting).await.expect("a read");
            let set = world.target.compare_and_set(setting, copied, registered.clone()).await;
            assert_eq!(set.expect("a write"), SetOutcome::Won);
            gate.opens.notify_one();
        };
        let (late, ()) = tokio::join!(copy(&source, &target, |_| {}), meanwhile);
        assert!(matches!(late, Err(CopyError::AnotherProcess)), "{late:?}");
        assert_eq!(world.target.setting(setting).await.expect("a read"), Some(registered));
        assert_eq!(world.open(), (false, true));
    }
}

/// T1 and T2 read the same page, between which a record moves; T2 stores its rows; T1 would store older ones over them; T2 notes
/// its rows.
#[tokio::test(start_paused = true)]
async fn of_two_copiers_the_second_takes_over() {
    let world = Arc::new(TwoStores::new(Duration::ZERO).await);
    let moving = world.add_unknown().await;
    let [first, second] = [BEFORE_IMPORT, AFTER_IMPORT].map(Gate::new);
    let first_ended = Notify::new();
    let one = async {
        let (source, target) = world.ends_behind(Some(&first));
        let late = copy(&source, &target, |_| {}).await;
        first_ended.notify_one();
        late
    };
    let other = async {
        first.is_reached.notified().await;
        world.settle(&moving).await;
        let (source, target) = world.ends_behind(Some(&second));
        copy(&source, &target, |_| {}).await
    };
    let order = async {
        second.is_reached.notified().await;
        first.opens.notify_one();
        first_ended.notified().await;
        second.opens.notify_one();
    };
    let (late, done, ()) = tokio::join!(one, other, order);
    assert!(matches!(late, Err(CopyError::AnotherProcess)), "{late:?}");
    done.expect("it is copied");
    let copied = load(&*world.target, moving.id).await.expect("it is copied");
    assert_eq!((copied.record.state, copied.body()), (State::Completed, Some(&b"paid"[..])));
}

/// The identity was abandoned for another one when the copy began.
#[tokio::test(start_paused = true)]
async fn a_cancelled_copy_leaves_an_identity_as_it_was() {
    for retires in [false, true] {
        let world = Arc::new(TwoStores::new(Duration::ZERO).await);
        if retires {
            retire(&*world.source, true, |_| {}).await.expect("it is retired");
        }
        let before = load_setting(&*world.source).await.expect("a read").expect("it was used");
        let (source, target) = world.ends();
        let stops = |step| {
            if let CopyStep::Copied { .. } = step {
                world.budget.store(0, Ordering::SeqCst);
            }
        };
        copy(&source, &target, stops).await.expect_err("it is stopped");
        world.budget.store(usize::MAX, Ordering::SeqCst);
        world.cancel().await.expect("it is cancelled");
        let after = load_setting(&*world.source).await.expect("a read").expect("it was used");
        assert_eq!((after.phase, after.is_abandoned), (before.phase, before.is_abandoned));
        assert_eq!(after.phase == IdentityPhase::Retired, retires);
    }
}

/// A copy is no way to change an identity.
#[tokio::test(start_paused = true)]
async fn a_copied_store_refuses_another_identity() {
    let world = Arc::new(TwoStores::new(Duration::ZERO).await);
    world.copy().await.expect("it is copied");
    let other =
        Settings::default().with(|settings| settings.identity = ibid::identity::StoreIdentity::new("other"));
    let refused = Ibid::start(world.target.clone(), other).await.map(drop);
    assert!(matches!(refused, Err(StartError::Identity(IdentityError::Differs(_)))), "{refused:?}");
    assert_replays(&world.target).await;
}

/// Two copies and a cancellation run at once, in many orders of their calls.
#[tokio::test(start_paused = true)]
async fn copies_and_a_cancellation_at_once_leave_one_store_open() {
    let mut ends = [0, 0];
    for seed in 1..=100 {
        let world = Arc::new(TwoStores::new(Duration::ZERO).await);
        world.dice.store(seed * 2 + 1, Ordering::SeqCst);
        let cancels = async {
            // The copies wait for running nodes most of the time: also cancel after that.
            tokio::time::sleep(Duration::from_secs(30) * (seed as u32 % 2)).await;
            for _ in 0..seed % 40 {
                tokio::task::yield_now().await;
            }
            world.cancel().await
        };
        let (one, other, cancelled) = tokio::join!(world.copy(), world.copy(), cancels);
        world.assert_one_open();
        world.dice.store(0, Ordering::SeqCst);
        let (source, target) = world.open();
        let has_copied = one.is_ok() || other.is_ok();
        match cancelled {
            Ok(()) => assert!(source && !target && !has_copied, "{seed}: {one:?} {other:?}"),
            Err(CopyError::Ended) => assert!(target && !source, "{seed}: {one:?} {other:?}"),
            // It came before the target was marked.
            Err(CopyError::NoCopy) => assert!(target || has_copied == target, "{seed}: {one:?} {other:?}"),
            Err(error) => panic!("{seed}: {error:?}"),
        }
        ends[usize::from(target)] += 1;
        match target {
            true => assert_replays(&world.target).await,
            false => drop(world.copy().await),
        }
        world.assert_one_open();
    }
    assert!(ends.iter().all(|times| *times > 10), "both ends are reached: {ends:?}");
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_during_a_copy_keeps_the_target_closed() {
    let world = Arc::new(TwoStores::new(Duration::ZERO).await);
    let (source, target) = world.ends();
    let on_step = |step| {
        if let CopyStep::Compared { .. } = step {
            world.hands[1].advance(Duration::from_secs(60));
        }
    };
    let refused = copy(&source, &target, on_step).await;
    assert!(matches!(refused, Err(CopyError::ClockMoved { was_us: 0, .. })), "{refused:?}");
    assert_eq!(world.open(), (false, false));
    world.cancel().await.expect("it is cancelled");
    assert_replays(&world.source).await;
}

#[tokio::test(start_paused = true)]
async fn a_row_that_was_changed_in_the_target_keeps_it_closed() {
    let world = Arc::new(TwoStores::new(Duration::ZERO).await);
    let (source, target) = world.ends();
    let on_step = |step| {
        if let CopyStep::Copied { part: CopiedPart::History, .. } = step {
            let name = TestRecord::fresh();
            let added = insert(&name, draft(&name, State::Completed));
            let added =
                world.target.commit(Arc::new(added), None).now_or_never().expect("memory never waits");
            assert!(matches!(added, Ok(Commit::Done(_))), "{added:?}");
        }
    };
    let refused = copy(&source, &target, on_step).await;
    let Err(CopyError::Differs { part: CopiedPart::Records, copied, found }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((copied.count, found.count, world.open()), (1, 2, (false, false)));
}

#[tokio::test(start_paused = true)]
async fn a_source_is_copied_to_one_target() {
    let world = Arc::new(TwoStores::new(Duration::ZERO).await);
    let (source, target) = world.ends();
    let other = CopyEnd::new(Arc::new(MemoryStore::new(Clock::manual(START).0)), "memory:c");
    let stops = |step| {
        if let CopyStep::Copied { .. } = step {
            world.budget.store(0, Ordering::SeqCst);
        }
    };
    copy(&source, &target, stops).await.expect_err("it stops midway");
    world.budget.store(usize::MAX, Ordering::SeqCst);
    assert_eq!(world.open(), (false, false));
    let elsewhere = copy(&source, &other, |_| {}).await;
    assert!(matches!(elsewhere, Err(CopyError::OtherTarget(_))), "{elsewhere:?}");
    let wrong = cancel(&source, &other).await;
    assert!(matches!(wrong, Err(CopyError::OtherTarget(_))), "its mark tells nothing: {wrong:?}");
    assert_eq!(world.open(), (false, false));
    // A cancelled target is not the target of the next copy, so it can't open that copy's source.
    cancel(&source, &target).await.expect("it is cancelled");
    copy(&source, &other, |_| {}).await.expect("an empty target");
    for _ in 0..2 {
        let late = cancel(&source, &target).await;
        assert!(matches!(late, Err(CopyError::Ended)), "{late:?}");
    }
    assert_eq!(world.open(), (false, false));
}

/// [`FaultyStore`] has no `CopyStore`.
#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_copied_is_refused_before_a_close() {
    let world = Arc::new(TwoStores::new(Duration::ZERO).await);
    let (source, target) = world.ends();
    let wrap = |end: &CopyEnd| CopyEnd::new(FaultyStore::new(end.store.clone()), &end.display_url);
    for (from, to) in [(wrap(&source), target.clone()), (source.clone(), wrap(&target))] {
        let refused = copy(&from, &to, |_| {}).await.expect_err("one of them can't be copied");
        assert!(matches!(&refused, CopyError::Store(error) if !error.is_transient()), "{refused:?}");
        assert_eq!(world.open(), (true, false), "nothing was closed");
    }
    world.copy().await.expect("no mark was left behind");
}

#[tokio::test(start_paused = true)]
async fn a_running_request_is_waited_for_and_swept() {
    let world = Arc::new(TwoStores { recovers: true, ..TwoStores::new(Duration::ZERO).await });
    let ibid = start(&world.source).await.expect("it starts");
    let Begin::Run(mut attempt) =
        ibid.begin(ask(&ibid, "shop", "running", Policy::default())).await.expect("it begins")
    else {
        panic!("it is new");
    };
    attempt.ensure_lease().await.expect("the lease is new");
    let id = ask(&ibid, "shop", "running", Policy::default()).id;
    let before = load(&*world.source, id).await.expect("it is stored").record;
    let (source, target) = world.ends();
    let mut waits = 0;
    let on_step = |step| {
        if let CopyStep::Running { leases } = step {
            assert_eq!(leases, 1);
            waits += 1;
            // The sweep that follows fails, and is repeated.
            world.budget.store(if waits == 1 { 0 } else { usize::MAX }, Ordering::SeqCst);
            if waits == 3 {
                world.hands.iter().for_each(|hand| hand.advance(Policy::default().lease));
            }
        }
    };
    copy(&source, &target, on_step).await.expect("it is copied");
    assert!(waits >= 3, "it waited for the lease");
    let copied = load(&*world.target, id).await.expect("it is copied").record;
    assert_eq!(copied.state, State::Unknown);
    assert_ne!(copied.version, before.version, "a late holder meets another version");
}
