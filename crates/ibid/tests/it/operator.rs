//! Operator actions on records, on the memory store with a manual clock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ibid::attempt::Attempt;
use ibid::operator::{
    BulkAction, Observation, Operator, OperatorAction, OperatorError, RecordFilter, SeenVersion, answer,
};
use ibid::outcome::{Begin, Outcome};
use ibid::store::clock::{Clock, ClockSetter};
use ibid::store::memory::MemoryStore;
use ibid::upkeep::{self, Retention};
use ibid::{Ibid, Settings};
use ibid_core::change::{HistoryKind, StoredRecord};
use ibid_core::machine::BeginRequest;
use ibid_core::policy::{OnLapse, Policy};
use ibid_core::record::{ErrorCode, State};
use ibid_core::response::Response;
use ibid_core::scope::RecordId;
use ibid_core::time::Timestamp;
use ibid_testkit::faults::{FaultyStore, StoreFault};

use crate::request_fixture::{ask, takes_over_at_start};

/// A node, and an operator who acts on its store.
struct NodeWithOperator {
    ibid: Ibid,
    operator: Operator,
    store: Arc<FaultyStore>,
    hands: ClockSetter,
}

impl NodeWithOperator {
    async fn new() -> NodeWithOperator {
        let (clock, hands) = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let store = FaultyStore::new(Arc::new(MemoryStore::new(clock)));
        let ibid = Ibid::start(store.clone(), Settings::default()).await.expect("it starts");
        NodeWithOperator { operator: Operator::new(&ibid), ibid, store, hands }
    }

    fn ask_of(&self, tenant: &str, key: &str) -> BeginRequest {
        self.ask_by(tenant, key, Policy::default())
    }

    fn ask_by(&self, tenant: &str, key: &str, policy: Policy) -> BeginRequest {
        ask(&self.ibid, tenant, key, policy)
    }

    async fn begin(&self, key: &str) -> Begin {
        self.ibid.begin(self.ask_of("shop", key)).await.expect("the store answers")
    }

    async fn run(&self, key: &str) -> Attempt {
        match self.begin(key).await {
            Begin::Run(attempt) => *attempt,
            other => panic!("not to be run: {other:?}"),
        }
    }

    /// Makes a record whose attempt could not learn the outcome of its work.
    async fn unknown(&self, key: &str) -> RecordId {
        let id = self.ask_of("shop", key).id;
        let _ = self.run(key).await.unknown(ErrorCode::TimedOut).await;
        id
    }

    async fn make_completed(&self, key: &str) -> RecordId {
        let id = self.ask_of("shop", key).id;
        let _ = self.run(key).await.finish(Response::plain(201, "text/plain", "first".to_owned())).await;
        id
    }

    /// Makes a record that failed permanently when its owner went silent: completed, and a dead letter.
    async fn make_abandoned(&self, key: &str) -> StoredRecord {
        let ask = self.ask_by("shop", key, Policy::default().with(|policy| policy.on_lapse = OnLapse::Fail));
        let (id, lease) = (ask.id, ask.policy.lease);
        let Begin::Run(silent) = self.ibid.begin(ask).await.expect("the store answers") else {
            panic!("not to be run")
        };
        // Its process is gone: nothing ends it.
        std::mem::forget(silent);
        self.hands.advance(lease);
        let node = Ibid::for_upkeep(self.store.clone(), takes_over_at_start());
        assert_eq!(upkeep::sweep_once(&node).await.expect("the store answers"), 1);
        self.operator.history(id).await.expect("it is there").stored
    }

    /// Returns the number of dead letters, once every attempt's time is over.
    async fn count_dead_letters(&self) -> usize {
        self.hands.advance(Policy::default().over_in());
        self.operator.dead_letters(None, 0, 10).await.expect("a list").records.records.len()
    }

    async fn lines(&self, id: RecordId) -> Vec<(HistoryKind, String)> {
        let history = self.operator.history(id).await.expect("it is there").history;
        history.into_iter().map(|line| (line.what, line.detail)).collect()
    }
}

fn ann() -> OperatorAction {
    OperatorAction::new("ann", "the bank has it").expect("a name and a reason")
}

fn bob() -> OperatorAction {
    OperatorAction::new("bob", "the bank never saw it").expect("a name and a reason")
}

fn executed_observation() -> Observation {
    Observation::Executed(answer(201, "text/plain", "by hand"))
}

fn seen_version(stored: &StoredRecord) -> SeenVersion {
    SeenVersion { id: stored.record.id, version: stored.record.version }
}

#[tokio::test]
async fn an_unknown_record_resolved_as_executed_replays_that_answer() {
    let world = NodeWithOperator::new().await;
    let id = world.unknown("k").await;
    let stored =
        world.operator.resolve(id, None, &executed_observation(), &ann()).await.expect("it is settled");
    assert_eq!((stored.record.state, stored.record.note.status), (State::Completed, Some(201)));
    assert!(!stored.record.flags.dead_letter, "it is no dead letter any more");
    let Begin::Skip(Outcome::Completed(kept)) = world.begin("k").await else { panic!("a retry replays") };
    assert_eq!((kept.response.status, &kept.response.body[..]), (201, &b"by hand"[..]));
    let line = "resolved as executed (201), unknown to completed, by ann: the bank has it";
    assert_eq!(world.lines(id).await.last(), Some(&(HistoryKind::Operator, line.to_owned())));
}

#[tokio::test]
async fn an_unknown_record_resolved_as_not_executed_runs_once_more() {
    let world = NodeWithOperator::new().await;
    let id = world.unknown("k").await;
    world.operator.resolve(id, None, &Observation::NotExecuted, &bob()).await.expect("it is settled");
    let line = "resolved as not executed, unknown to retryable, by bob: the bank never saw it";
    assert_eq!(world.lines(id).await.last(), Some(&(HistoryKind::Operator, line.to_owned())));
    let attempt = world.run("k").await;
    assert_eq!(attempt.number(), 2);
    assert!(
        matches!(world.begin("k").await, Begin::Skip(Outcome::InFlight { .. })),
        "one retry runs, no more"
    );
}

#[tokio::test]
async fn a_forgotten_key_runs_as_new_despite_the_cache() {
    let world = NodeWithOperator::new().await;
    let id = world.make_completed("k").await;
    assert!(matches!(world.begin("k").await, Begin::Skip(Outcome::Completed(_))), "it is in the cache");
    world.operator.forget(id, None, &ann()).await.expect("it is forgotten");
    let line = "forgotten, completed (201) to absent, by ann: the bank has it";
    assert_eq!(world.lines(id).await.last(), Some(&(HistoryKind::Operator, line.to_owned())));
    assert_eq!(world.run("k").await.number(), 1, "as new");
}

#[tokio::test]
async fn a_refused_action_shows_the_record_as_it_is() {
    let world = NodeWithOperator::new().await;
    let (unknown, completed) = (world.unknown("u").await, world.make_completed("c").await);
    let running = world.run("r").await;
    let busy = world.ask_of("shop", "r").id;
    let absent = world.ask_of("shop", "absent").id;
    let refused = [
        (world.operator.forget(unknown, None, &ann()).await, State::Unknown),
        (world.operator.forget(busy, None, &ann()).await, State::InProgress),
        (world.operator.resolve(busy, None, &executed_observation(), &ann()).await, State::InProgress),
        (world.operator.resolve(completed, None, &Observation::NotExecuted, &ann()).await, State::Completed),
    ];
    for (refused, state) in refused {
        let Err(OperatorError::NotNow { stored, .. }) = refused else { panic!("{state:?}: {refused:?}") };
        assert_eq!(stored.record.state, state);
    }
    let missing = world.operator.forget(absent, None, &ann()).await;
    assert!(matches!(missing, Err(OperatorError::NoSuchRecord)), "{missing:?}");
    drop(running);
}

#[tokio::test]
async fn acknowledging_a_dead_letter_changes_nothing_else() {
    let world = NodeWithOperator::new().await;
    let before = world.make_abandoned("k").await;
    assert_eq!((before.record.state, before.record.flags.dead_letter), (State::Completed, true));
    assert_eq!(world.count_dead_letters().await, 1);
    // Much later, to see that its remaining lifetime does not start again.
    world.hands.advance(Duration::from_secs(3600));
    let shown =
        world.operator.preview(RecordFilter::default(), &BulkAction::Acknowledge).await.expect("a preview");
    assert_eq!((shown.records.len(), shown.left_alone), (1, 0));
    let after = world
        .operator
        .acknowledge(before.record.id, Some(before.record.version), &ann())
        .await
        .expect("it is seen to");
    assert!(!after.record.flags.dead_letter);
    assert_eq!(world.count_dead_letters().await, 0);
    let stored_fields = |stored: &StoredRecord| {
        let record = &stored.record;
        let instants = (record.due_at, record.expires_at, record.purge_at);
        (record.state, record.birth, record.attempt, record.note.status, instants, stored.response.clone())
    };
    assert_eq!(stored_fields(&after), stored_fields(&before));
    let stored = world.operator.history(before.record.id).await.expect("it is there").stored;
    assert_eq!(stored_fields(&stored), stored_fields(&before), "as the store has it, too");
    let Begin::Skip(Outcome::Completed(answer)) = world.begin("k").await else { panic!("a retry replays") };
    assert_eq!(Some(answer.response.status), before.record.note.status);
    let line = "seen to, a dead letter no longer, completed as before, by ann: the bank has it";
    assert_eq!(world.lines(before.record.id).await.last(), Some(&(HistoryKind::Operator, line.to_owned())));

    let twice = world.operator.acknowledge(before.record.id, None, &bob()).await;
    let Err(OperatorError::NotNow { last, .. }) = &twice else { panic!("{twice:?}") };
    assert_eq!(last.as_ref().map(|last| last.detail.as_str()), Some(line));
    assert_eq!(
        world.lines(before.record.id).await.iter().filter(|(what, _)| *what == HistoryKind::Operator).count(),
        1
    );
}

#[tokio::test]
async fn only_a_dead_letter_whose_outcome_is_known_can_be_seen_to() {
    let world = NodeWithOperator::new().await;
    let (unknown, completed) = (world.unknown("u").await, world.make_completed("c").await);
    assert_eq!(world.count_dead_letters().await, 1, "an unknown record without a lookup is a dead letter");
    for (id, state) in [(unknown, State::Unknown), (completed, State::Completed)] {
        let refused = world.operator.acknowledge(id, None, &ann()).await;
        let Err(OperatorError::NotNow { stored, .. }) = refused else { panic!("{state:?}: {refused:?}") };
        assert_eq!(stored.record.state, state);
    }
    assert_eq!(world.count_dead_letters().await, 1, "it still waits for an operator");
    let shown =
        world.operator.preview(RecordFilter::default(), &BulkAction::Acknowledge).await.expect("a preview");
    assert_eq!((shown.records.len(), shown.left_alone), (0, 2));
}

#[tokio::test]
async fn a_dead_letter_outlives_its_retention_until_acknowledged() {
    let world = NodeWithOperator::new().await;
    let letter = world.make_abandoned("k").await.record;
    let node = Ibid::for_upkeep(world.store.clone(), takes_over_at_start());
    world.hands.advance(Policy::default().retention * 10);
    upkeep::reap_once(&node, Retention::default()).await.expect("the store answers");
    let stored = world.operator.history(letter.id).await.expect("it is there").stored;
    assert!(stored.record.version == letter.version && stored.response.is_some(), "{stored:?}");
    world.operator.acknowledge(letter.id, None, &ann()).await.expect("it is seen to");
    upkeep::reap_once(&node, Retention::default()).await.expect("the store answers");
    let gone = world.operator.history(letter.id).await;
    assert!(gone.is_err(), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn only_one_of_many_operators_settles_a_record() {
    let world = NodeWithOperator::new().await;
    let id = world.unknown("k").await;
    let act = async |index: usize| {
        let operator = world.operator.clone();
        let act = OperatorAction::new(&format!("person-{index}"), "knows it").expect("a name and a reason");
        let observation =
            if index.is_multiple_of(2) { executed_observation() } else { Observation::NotExecuted };
        tokio::spawn(async move { operator.resolve(id, None, &observation, &act).await })
            .await
            .expect("no panic")
    };
    let done: Vec<_> = join_all((0..16).map(act)).await;
    let winners: Vec<usize> = (0..16).filter(|index| done[*index].is_ok()).collect();
    assert_eq!(winners.len(), 1, "{done:?}");
    let settled: Vec<_> =
        world.lines(id).await.into_iter().filter(|(what, _)| *what == HistoryKind::Operator).collect();
    assert_eq!(settled.len(), 1, "one line: {settled:?}");
    for lost in done.into_iter().filter_map(Result::err) {
        let OperatorError::NotNow { stored, last } = &lost else { panic!("{lost:?}") };
        assert_ne!(stored.record.state, State::Unknown);
        let detail = &last.as_ref().expect("who won").detail;
        assert!(detail.contains(&format!("by person-{}:", winners[0])), "{detail}");
        assert!(lost.to_string().contains(detail.as_str()), "{lost}");
    }
}

#[tokio::test]
async fn an_action_on_an_outdated_view_is_refused() {
    let world = NodeWithOperator::new().await;
    let id = world.unknown("k").await;
    let looked_at = world.operator.history(id).await.expect("it is there").stored.record.version;
    world.operator.resolve(id, Some(looked_at), &Observation::NotExecuted, &bob()).await.expect("as it was");
    // The retry runs and is unknown again: ann's view was of the run before.
    let _ = world.run("k").await.unknown(ErrorCode::Broken).await;
    let late = world.operator.resolve(id, Some(looked_at), &executed_observation(), &ann()).await;
    let Err(OperatorError::Changed { stored, .. }) = late else { panic!("{late:?}") };
    assert_eq!((stored.record.state, stored.record.attempt), (State::Unknown, 2));
}

#[tokio::test]
async fn an_act_whose_reply_is_lost_is_recognised_as_done() {
    let world = NodeWithOperator::new().await;
    let id = world.unknown("k").await;
    world.store.set(StoreFault::LosesReplies);
    let (operator, store) = (world.operator.clone(), world.store.clone());
    let before = store.commits();
    let acting =
        tokio::spawn(async move { operator.resolve(id, None, &executed_observation(), &ann()).await });
    while store.commits() == before {
        tokio::task::yield_now().await;
    }
    world.store.set(StoreFault::None);
    let stored = acting.await.expect("no panic").expect("it is done");
    assert_eq!(stored.record.state, State::Completed);
    let acts = world.lines(id).await.into_iter().filter(|(what, _)| *what == HistoryKind::Operator).count();
    assert_eq!(acts, 1, "written once");
}

#[tokio::test]
async fn an_operators_oversized_response_is_refused() {
    let world = NodeWithOperator::new().await;
    let id = world.unknown("k").await;
    let body = vec![b'x'; Policy::default().max_response_body as usize + 1];
    let large = Observation::Executed(answer(200, "text/plain", body));
    let refused = world.operator.resolve(id, None, &large, &ann()).await;
    assert!(matches!(refused, Err(OperatorError::TooLarge { .. })), "{refused:?}");
    assert_eq!(world.operator.history(id).await.unwrap().stored.record.state, State::Unknown);
}

#[tokio::test]
async fn a_bulk_action_changes_only_records_as_previewed() {
    let world = NodeWithOperator::new().await;
    for key in ["a", "b", "c"] {
        world.unknown(key).await;
    }
    world.make_completed("done").await;
    let action = BulkAction::Resolve(Observation::NotExecuted);
    let preview = world.operator.preview(RecordFilter::default(), &action).await.expect("a preview");
    assert_eq!((preview.records.len(), preview.left_alone, preview.next), (3, 1, None));
    let shown: Vec<SeenVersion> = preview.records.iter().map(seen_version).collect();
    // Another operator settles one record, and a new one appears.
    world.operator.resolve(shown[1].id, None, &executed_observation(), &ann()).await.expect("it is settled");
    let newcomer = world.unknown("new").await;
    let done = world.operator.apply(&shown, &action, &bob()).await;
    assert!(done.iter().zip(&shown).all(|((id, _), seen)| *id == seen.id), "in their order");
    assert!(done[0].1.is_ok() && done[2].1.is_ok(), "{done:?}");
    assert!(matches!(done[1].1, Err(OperatorError::Changed { .. })), "{done:?}");
    assert_eq!(world.operator.history(newcomer).await.unwrap().stored.record.state, State::Unknown);
    let forget =
        world.operator.preview(RecordFilter::default(), &BulkAction::Forget).await.expect("a preview");
    assert_eq!(forget.records.len(), 2, "the completed ones");
}

#[tokio::test]
async fn pages_follow_one_another_and_the_last_has_no_cursor() {
    let world = NodeWithOperator::new().await;
    for index in 0..5 {
        world.unknown(&format!("k{index}")).await;
    }
    world.hands.advance(Duration::from_secs(60));
    world.unknown("young").await;
    let old = |after| {
        RecordFilter::default().with(|filter| {
            filter.older_than = Some(Duration::from_secs(30));
            filter.after = after;
            filter.limit = 3;
        })
    };
    let first = world.operator.find(old(None)).await.expect("a page");
    let second = world.operator.find(old(first.next)).await.expect("a page");
    assert_eq!((first.records.len(), second.records.len(), second.next), (3, 2, None));
    world.hands.advance(Duration::from_secs(60));
    let letters =
        world.operator.dead_letters(None, 0, 4).await.expect("a store without an outbox has some too");
    assert_eq!((letters.records.records.len(), letters.effects.len()), (4, 0));
    assert!(letters.records.next.is_some());
}

#[tokio::test]
async fn tenants_are_ranked_by_their_share_of_duplicates() {
    let world = NodeWithOperator::new().await;
    let send = async |tenant: &str, key: String| {
        if let Begin::Run(attempt) = world.ibid.begin(world.ask_of(tenant, &key)).await.expect("it answers") {
            let _ = attempt.finish(Response::plain(201, "text/plain", String::new())).await;
        }
    };
    for round in 0..30 {
        send("calm", format!("calm-{round}")).await;
        send("noisy", "always the same".to_owned()).await;
        send("half", format!("half-{}", round / 2)).await;
    }
    send("quiet", "one".to_owned()).await;
    send("quiet", "one".to_owned()).await;
    let rates = world.ibid.tenants(3);
    let lines: Vec<_> =
        rates.iter().map(|rate| (rate.tenant.as_str(), rate.requests, rate.duplicates)).collect();
    assert_eq!(lines, [("noisy", 30, 29), ("half", 30, 15), ("calm", 30, 0)]);
    assert_eq!(world.ibid.tenants_above_duplicate_rate(), 1, "half of them is still allowed");
    assert_eq!(world.ibid.tenants(10).last().map(|rate| rate.tenant.as_str()), Some("quiet"));
}
