//! The reconciler: which records it looks up, when it trusts an answer, and which of several settlers wins. On the memory
//! store with a manual clock; a separate node, which has seen no clock jump, runs each round.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use ibid::Ibid;
use ibid::attempt::LateAnswer;
use ibid::outcome::{Begin, Outcome};
use ibid::store::clock::{Clock, ClockSetter};
use ibid::store::memory::MemoryStore;
use ibid::upkeep::{self, LookupResult, OutcomeLookup, ReconcileStats, UnknownRequest};
use ibid_core::machine::BeginRequest;
use ibid_core::policy::{Policy, Reconcile};
use ibid_core::record::{ErrorCode, Record, State};
use ibid_core::response::Response;
use ibid_core::store::{BoxFuture, RecordFilter, Store};
use ibid_core::time::Timestamp;
use tokio::sync::{Barrier, Notify};

use crate::request_fixture::{ask, takes_over_at_start};

/// A node on a store in memory whose clock the test moves.
struct NodeOnMemoryStore {
    ibid: Ibid,
    store: Arc<MemoryStore>,
    hands: ClockSetter,
}

impl NodeOnMemoryStore {
    async fn new() -> NodeOnMemoryStore {
        let (clock, hands) = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let store = Arc::new(MemoryStore::new(clock));
        let ibid = Ibid::start(store.clone(), takes_over_at_start()).await.expect("it starts");
        NodeOnMemoryStore { ibid, store, hands }
    }

    fn ask(&self, key: &str) -> BeginRequest {
        self.ask_by(key, Reconcile::new(SETTLE, ATTEMPTS))
    }

    fn ask_by(&self, key: &str, rule: Reconcile) -> BeginRequest {
        let policy = Policy::default().with(|policy| {
            policy.reconcile = Some(rule);
            policy.max_response_body = 100;
        });
        ask(&self.ibid, "shop", key, policy)
    }

    async fn begin(&self, key: &str) -> Begin {
        self.ibid.begin(self.ask(key)).await.expect("the store answers")
    }

    /// Makes a request that was sent and never answered.
    async fn unknown(&self, key: &str) -> LateAnswer {
        self.unknown_by(self.ask(key)).await
    }

    async fn unknown_by(&self, ask: BeginRequest) -> LateAnswer {
        let Begin::Run(mut attempt) = self.ibid.begin(ask).await.expect("the store answers") else {
            panic!("not to be run")
        };
        attempt.ensure_lease().await.expect("a fresh lease");
        attempt.unknown(ErrorCode::TimedOut).await.1
    }

    /// Runs one round of lookups at a node that has seen no clock jump.
    async fn reconcile(&self, finder: impl OutcomeLookup + 'static) -> ReconcileStats {
        let node = Ibid::for_upkeep(self.store.clone(), takes_over_at_start());
        node.reconcile_with(Arc::new(finder));
        upkeep::reconcile_once(&node).await.expect("the store answers")
    }

    async fn record(&self, key: &str) -> Arc<Record> {
        let filter = RecordFilter::default().with(|filter| filter.key = Some(key.to_owned()));
        let mut all = self
            .store
            .browse()
            .expect("a store that can be browsed")
            .list(filter)
            .await
            .expect("a list")
            .items;
        assert_eq!(all.len(), 1, "one record");
        all.remove(0).record
    }
}

/// A lookup that returns its prepared results in turn, and records the requests it was called with.
#[derive(Clone, Default)]
struct ScriptedLookup {
    findings: Arc<Mutex<VecDeque<LookupResult>>>,
    asked: Arc<Mutex<Vec<UnknownRequest>>>,
}

impl ScriptedLookup {
    fn returning(findings: impl IntoIterator<Item = LookupResult>) -> ScriptedLookup {
        ScriptedLookup {
            findings: Arc::new(Mutex::new(findings.into_iter().collect())),
            ..ScriptedLookup::default()
        }
    }

    fn call_count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

impl OutcomeLookup for ScriptedLookup {
    fn find(&self, doubtful: UnknownRequest) -> BoxFuture<'static, LookupResult> {
        self.asked.lock().unwrap().push(doubtful);
        let finding = self.findings.lock().unwrap().pop_front().unwrap_or(LookupResult::Nothing);
        Box::pin(async move { finding })
    }
}

/// A lookup made of a closure.
struct By<F>(F);

impl<F: Fn(UnknownRequest) -> BoxFuture<'static, LookupResult> + Send + Sync> OutcomeLookup for By<F> {
    fn find(&self, doubtful: UnknownRequest) -> BoxFuture<'static, LookupResult> {
        (self.0)(doubtful)
    }
}

fn answer(status: u16) -> Response {
    Response { status, headers: vec![], body: Bytes::from_static(b"found"), trailers: vec![] }
}

const SETTLE: Duration = Duration::from_secs(60);
const ATTEMPTS: u32 = 3;
fn stats(change: impl FnOnce(&mut ReconcileStats)) -> ReconcileStats {
    let mut stats = ReconcileStats::default();
    change(&mut stats);
    stats
}

#[tokio::test]
async fn a_looked_up_response_is_replayed_even_if_declined() {
    for status in [201, 402] {
        let world = NodeOnMemoryStore::new().await;
        let _late = world.unknown("k").await;
        let lookup = ScriptedLookup::returning([LookupResult::Executed(answer(status))]);
        assert_eq!(
            world.reconcile(lookup.clone()).await,
            ReconcileStats::default(),
            "not before the attempt is over"
        );
        world.hands.advance(SETTLE);
        let came = world.reconcile(lookup.clone()).await;
        assert_eq!(
            came,
            stats(|s| {
                s.asked = 1;
                s.settled = 1;
            })
        );
        assert!(
            matches!(world.begin("k").await, Begin::Skip(Outcome::Completed(kept)) if *kept.response == answer(status)),
            "{status}"
        );
        let asked = lookup.asked.lock().unwrap().clone();
        let [seen] = &asked[..] else { panic!("asked once") };
        let words = (seen.tenant.as_str(), seen.method.as_str(), seen.path.as_str(), seen.key.as_str());
        assert_eq!(words, ("shop", "POST", "/pay", "k"));
        assert_eq!((seen.attempt, seen.asked), (1, 0));
        assert_eq!(seen.short, world.record("k").await.id.short());
    }
}

#[tokio::test]
async fn not_executed_is_believed_at_the_second_lookup() {
    let world = NodeOnMemoryStore::new().await;
    let _late = world.unknown("k").await;
    let lookup = ScriptedLookup::returning([LookupResult::NotExecuted, LookupResult::NotExecuted]);
    world.hands.advance(SETTLE);
    assert_eq!(world.reconcile(lookup.clone()).await, stats(|s| s.asked = 1));
    let Begin::Skip(Outcome::Unknown { settled_in: Some(wait) }) = world.begin("k").await else {
        panic!("still unknown")
    };
    assert!(SETTLE <= wait && wait <= SETTLE.mul_f64(1.25), "until the next look: {wait:?}");
    world.hands.advance(SETTLE - Duration::from_micros(1));
    assert_eq!(
        world.reconcile(lookup.clone()).await,
        ReconcileStats::default(),
        "no lookup before it is due"
    );
    world.hands.advance(SETTLE / 4);
    assert_eq!(
        world.reconcile(lookup.clone()).await,
        stats(|s| {
            s.asked = 1;
            s.settled = 1;
        })
    );
    assert_eq!(world.record("k").await.state, State::Retryable);
    let (one, other) = tokio::join!(world.begin("k"), world.begin("k"));
    let runs = [&one, &other].iter().filter(|begun| matches!(begun, Begin::Run(_))).count();
    assert_eq!(runs, 1);
}

#[tokio::test]
async fn not_there_at_first_and_executed_after_all_is_completed() {
    let world = NodeOnMemoryStore::new().await;
    let _late = world.unknown("k").await;
    let lookup = ScriptedLookup::returning([LookupResult::NotExecuted, LookupResult::Executed(answer(201))]);
    for settled in [0, 1] {
        world.hands.advance(2 * SETTLE);
        assert_eq!(
            world.reconcile(lookup.clone()).await,
            stats(|s| {
                s.asked = 1;
                s.settled = settled;
            })
        );
    }
    assert!(matches!(world.begin("k").await, Begin::Skip(Outcome::Completed(_))));
}

#[tokio::test]
async fn after_the_last_lookup_a_record_is_a_dead_letter() {
    let world = NodeOnMemoryStore::new().await;
    let _late = world.unknown("k").await;
    let lookup = ScriptedLookup::default();
    for dead_letters in [0, 0, 1] {
        world.hands.advance(10 * SETTLE);
        assert_eq!(
            world.reconcile(lookup.clone()).await,
            stats(|s| {
                s.asked = 1;
                s.settled = 0;
                s.dead_letters = dead_letters;
            })
        );
    }
    world.hands.advance(10 * SETTLE);
    assert_eq!(world.reconcile(lookup.clone()).await, ReconcileStats::default());
    assert_eq!(lookup.call_count(), ATTEMPTS as usize);
    assert!(matches!(world.begin("k").await, Begin::Skip(Outcome::Unknown { settled_in: None })));
    let record = world.record("k").await;
    assert!(record.flags.dead_letter && record.state == State::Unknown && record.attempt == 1);
    let history = world
        .store
        .browse()
        .expect("a store that can be browsed")
        .history(record.id)
        .await
        .expect("a history");
    let tries = history.iter().filter(|line| line.what.name() == "reconcile try").count();
    assert_eq!(tries, ATTEMPTS as usize, "each question has its line");
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_panics_or_hangs_finds_nothing() {
    let world = NodeOnMemoryStore::new().await;
    let mut late = Vec::new();
    for key in ["panics", "hangs", "known"] {
        late.push(world.unknown(key).await);
    }
    world.hands.advance(SETTLE);
    let finder = By(|doubtful: UnknownRequest| -> BoxFuture<'static, LookupResult> {
        match doubtful.key.as_str() {
            "panics" => panic!("a bug of the application's"),
            "hangs" => Box::pin(std::future::pending()),
            _ => Box::pin(async { LookupResult::Executed(answer(201)) }),
        }
    });
    assert_eq!(
        world.reconcile(finder).await,
        stats(|s| {
            s.asked = 3;
            s.settled = 1;
        })
    );
    for (key, state, tries) in
        [("panics", State::Unknown, 1), ("hangs", State::Unknown, 1), ("known", State::Completed, 0)]
    {
        let record = world.record(key).await;
        assert_eq!((record.state, record.note.tries), (state, tries), "{key}");
    }
}

#[tokio::test]
async fn two_reconcilers_at_once_count_one_lookup() {
    for (finding, settled) in [(LookupResult::Executed(answer(201)), 1), (LookupResult::Nothing, 0)] {
        let world = NodeOnMemoryStore::new().await;
        let _late = world.unknown("k").await;
        world.hands.advance(SETTLE);
        // Neither lookup answers before both were called.
        let both = Arc::new(Barrier::new(2));
        let finder = || {
            let (both, finding) = (both.clone(), finding.clone());
            By(move |_| -> BoxFuture<'static, LookupResult> {
                let (both, finding) = (both.clone(), finding.clone());
                Box::pin(async move {
                    both.wait().await;
                    finding
                })
            })
        };
        let (one, other) = tokio::join!(world.reconcile(finder()), world.reconcile(finder()));
        assert_eq!((one.asked, other.asked), (1, 1));
        assert_eq!(one.settled + other.settled, settled, "one settles, the other learns it");
        let record = world.record("k").await;
        assert_eq!(record.note.tries, u32::from(settled == 0), "one look is one try");
    }
}

#[tokio::test]
async fn a_late_response_during_a_lookup_wins() {
    let world = NodeOnMemoryStore::new().await;
    let late = world.unknown("k").await;
    world.hands.advance(SETTLE);
    let (asked, answered) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let finder = By({
        let (asked, answered) = (asked.clone(), answered.clone());
        move |_| -> BoxFuture<'static, LookupResult> {
            let (asked, answered) = (asked.clone(), answered.clone());
            Box::pin(async move {
                asked.notify_one();
                answered.notified().await;
                LookupResult::Executed(answer(200))
            })
        }
    });
    let owner = async {
        asked.notified().await;
        assert!(matches!(late.finish(answer(201)).await, Outcome::Completed(_)));
        answered.notify_one();
    };
    let (came, ()) = tokio::join!(world.reconcile(finder), owner);
    assert_eq!(
        came,
        stats(|s| {
            s.asked = 1;
            s.settled = 0;
        })
    );
    assert!(
        matches!(world.begin("k").await, Begin::Skip(Outcome::Completed(kept)) if kept.response.status == 201)
    );
    assert!(!world.record("k").await.flags.dead_letter, "two accounts of one success are no contradiction");
}

#[tokio::test]
async fn a_late_answer_after_a_question_finds_the_outcome_known() {
    let world = NodeOnMemoryStore::new().await;
    let late = world.unknown("k").await;
    world.hands.advance(SETTLE);
    world.reconcile(ScriptedLookup::returning([LookupResult::Executed(answer(200))])).await;
    assert!(matches!(late.finish(answer(201)).await, Outcome::Superseded(_)));
    assert!(
        matches!(world.begin("k").await, Begin::Skip(Outcome::Completed(kept)) if kept.response.status == 200)
    );
}

#[tokio::test]
async fn an_answer_too_large_to_keep_completes_the_record_without_it() {
    let world = NodeOnMemoryStore::new().await;
    let _late = world.unknown("k").await;
    world.hands.advance(SETTLE);
    let large = Response { body: Bytes::from(vec![b'x'; 101]), ..answer(201) };
    assert_eq!(world.reconcile(ScriptedLookup::returning([LookupResult::Executed(large)])).await.settled, 1);
    assert!(matches!(world.begin("k").await, Begin::Skip(Outcome::NotRetained(_))));
}

#[tokio::test]
async fn after_a_clock_jump_no_lookup_is_made() {
    let world = NodeOnMemoryStore::new().await;
    let _late = world.unknown("k").await;
    let lookup = ScriptedLookup::returning([LookupResult::NotExecuted]);
    world.ibid.reconcile_with(Arc::new(lookup.clone()));
    // After a jump, two lookups that seem `settle` apart may not be.
    world.hands.advance(Duration::from_secs(3600));
    let held_back = stats(|s| s.held_back = Some(SETTLE));
    assert_eq!(upkeep::reconcile_once(&world.ibid).await.expect("the store answers"), held_back);
    assert_eq!(lookup.call_count(), 0);
}

#[tokio::test]
async fn a_record_without_a_lookup_uses_up_no_try() {
    struct NotMine;
    impl OutcomeLookup for NotMine {
        fn asks(&self, rule: &Reconcile) -> bool {
            rule.question.is_some()
        }
        fn find(&self, _: UnknownRequest) -> BoxFuture<'static, LookupResult> {
            panic!("it said that it can't")
        }
    }
    let world = NodeOnMemoryStore::new().await;
    let _late = world.unknown("k").await;
    world.hands.advance(SETTLE);
    assert_eq!(world.reconcile(NotMine).await, ReconcileStats::default());
    let lookup = ScriptedLookup::returning([LookupResult::Executed(answer(201))]);
    assert_eq!(world.reconcile(lookup).await.settled, 1);
}

#[tokio::test]
async fn foreign_unknown_records_do_not_starve_own_lookups() {
    /// Looks up records whose rule allows one try more than that of the others.
    struct Own(ScriptedLookup);
    impl OutcomeLookup for Own {
        fn asks(&self, rule: &Reconcile) -> bool {
            rule.attempts == ATTEMPTS + 1
        }
        fn find(&self, doubtful: UnknownRequest) -> BoxFuture<'static, LookupResult> {
            self.0.find(doubtful)
        }
    }
    let world = NodeOnMemoryStore::new().await;
    let mut late = Vec::new();
    // More than one batch, all due before our own records.
    for n in 0..200 {
        late.push(world.unknown(&format!("theirs-{n}")).await);
    }
    world.hands.advance(Duration::from_secs(1));
    for key in ["own-1", "own-2"] {
        late.push(world.unknown_by(world.ask_by(key, Reconcile::new(SETTLE, ATTEMPTS + 1))).await);
    }
    world.hands.advance(SETTLE);
    let lookup =
        ScriptedLookup::returning([LookupResult::Executed(answer(201)), LookupResult::Executed(answer(201))]);
    let came = world.reconcile(Own(lookup.clone())).await;
    assert_eq!(
        came,
        stats(|s| {
            s.asked = 2;
            s.settled = 2;
        })
    );
    let mut asked: Vec<String> =
        lookup.asked.lock().unwrap().iter().map(|seen| seen.key.as_str().to_owned()).collect();
    asked.sort();
    assert_eq!(asked, ["own-1", "own-2"]);
    let theirs = world.record("theirs-0").await;
    assert_eq!((theirs.state, theirs.flags.dead_letter), (State::Unknown, false));
}

#[tokio::test]
async fn a_node_for_upkeep_begins_nothing() {
    let world = NodeOnMemoryStore::new().await;
    let node = Ibid::for_upkeep(world.store.clone(), takes_over_at_start());
    assert!(node.begin(world.ask("k")).await.is_err());
    assert!(
        world
            .store
            .browse()
            .expect("a store that can be browsed")
            .list(RecordFilter::default())
            .await
            .expect("a list")
            .items
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn questions_about_one_route_go_out_at_its_pace() {
    let world = NodeOnMemoryStore::new().await;
    let mut late = Vec::new();
    for n in 0..150 {
        late.push(world.unknown(&format!("k{n}")).await);
    }
    world.hands.advance(SETTLE);
    let started = tokio::time::Instant::now();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let finder = By({
        let asked = asked.clone();
        move |_| -> BoxFuture<'static, LookupResult> {
            asked.lock().unwrap().push(started.elapsed());
            Box::pin(async { LookupResult::Executed(answer(201)) })
        }
    });
    assert_eq!(
        world.reconcile(finder).await,
        stats(|s| {
            s.asked = 150;
            s.settled = 150;
        })
    );
    // Measured on the test's paused clock, on which a write takes no time.
    let asked = asked.lock().unwrap();
    let in_one_second =
        asked.windows(53).filter(|asked| asked[52] - asked[0] < Duration::from_secs(1)).count();
    assert_eq!(in_one_second, 0, "at most fifty a second, and one more for each batch that begins");
}

#[tokio::test(start_paused = true)]
async fn hung_lookups_of_a_tenant_or_route_delay_no_others() {
    // A tenant with many unknown outcomes on one route, and a route of many tenants.
    for (tenants, routes) in [(1, 50), (50, 1)] {
        let world = NodeOnMemoryStore::new().await;
        let unknown = async |tenant: &str, route: &str, key: &str| {
            let mut rule = Reconcile::new(SETTLE, ATTEMPTS);
            rule.route = Some(route.to_owned());
            let policy = Policy::default().with(|policy| policy.reconcile = Some(rule));
            world.unknown_by(ask(&world.ibid, tenant, key, policy)).await
        };
        let mut late = Vec::new();
        for n in 0..200 {
            let (tenant, route) = (format!("hangs-{}", n % tenants), format!("slow-{}", n % routes));
            late.push(unknown(&tenant, &route, &format!("k{n}")).await);
        }
        world.hands.advance(Duration::from_secs(1));
        late.push(unknown("quick", "quick", "k").await);
        world.hands.advance(SETTLE);
        let (began, looked_up) = (tokio::time::Instant::now(), Arc::new(Mutex::new(None)));
        let finder = By({
            let looked_up = looked_up.clone();
            move |seen: UnknownRequest| -> BoxFuture<'static, LookupResult> {
                if seen.tenant.as_str() != "quick" {
                    return Box::pin(std::future::pending());
                }
                *looked_up.lock().unwrap() = Some(began.elapsed());
                Box::pin(async { LookupResult::Executed(answer(201)) })
            }
        });
        assert_eq!(world.reconcile(finder).await.settled, 1);
        let after = looked_up.lock().unwrap().expect("it is looked up");
        assert!(after < Duration::from_secs(1), "{after:?}, {tenants} tenants");
        // A lookup lasts 30 s at most, and none starts later than 30 s after the begin.
        let round = began.elapsed();
        assert!(round < Duration::from_secs(62), "{round:?}, {tenants} tenants");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_ends_makes_room_for_the_next_at_once() {
    let world = NodeOnMemoryStore::new().await;
    let mut late = Vec::new();
    for n in 0..100 {
        late.push(world.unknown(&format!("k{n}")).await);
    }
    world.hands.advance(SETTLE);
    let began = tokio::time::Instant::now();
    // One of the first hangs; all others end after a second.
    let finder = By(move |seen: UnknownRequest| -> BoxFuture<'static, LookupResult> {
        let is_hung = seen.key.as_str() == "k0";
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(if is_hung { 29 } else { 1 })).await;
            LookupResult::Executed(answer(201))
        })
    });
    assert_eq!(world.reconcile(finder).await, stats(|s| (s.asked, s.settled) = (100, 100)));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}: nothing waits for the one", began.elapsed());
}
