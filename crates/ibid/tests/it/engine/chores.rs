//! Chores that meet records which they have to leave as they are, a clock that leaps, or a panic.

use std::time::SystemTime;

use ibid::upkeep::{LookupResult, OutcomeLookup, Schedule, UnknownRequest};
use ibid_core::evidence::{EventName, Evidence, EvidenceStore, EvidenceSubject};
use ibid_core::machine::{AttemptResponse, Observation};
use ibid_core::policy::Reconcile;
use ibid_core::record::Nonce;
use ibid_core::scope::RecordId;
use ibid_core::store::BoxFuture;
use ibid_testkit::contract::{TestRecord, draft, insert, put};

use super::*;
use crate::request_fixture::{ask, takes_over_at_start};

#[tokio::test]
async fn a_sweep_continues_behind_records_that_have_to_wait() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Retry)).await;
    // After a clock jump none of these may be released, because their owners may be alive.
    for n in 0..600 {
        std::mem::forget(world.run(&format!("k{n}")).await);
    }
    world.hands.advance(Duration::from_millis(1));
    let unknown = Policy::default().with(|policy| policy.on_lapse = OnLapse::Unknown);
    let outcome = world.ibid.begin(ask(&world.ibid, "shop", "last", unknown)).await;
    std::mem::forget(outcome.expect("the store answers"));
    world.hands.advance(Duration::from_secs(3600));
    assert_eq!(upkeep::sweep_once(&world.ibid).await.expect("the store answers"), 1);
}

#[tokio::test]
async fn the_reaper_removes_nothing_right_after_a_clock_leap() {
    let world = world(Policy::default()).await;
    let _ = world.run("done").await.finish(created_response()).await;
    let start = world.only_record().await.now;
    world.hands.advance(Duration::from_secs(25 * 3600));
    // Any operation shows the leap.
    let _attempt = world.run("other").await;
    let reap = async || upkeep::reap_once(&world.ibid, Retention::default()).await.expect("a round").removed;
    assert_eq!(reap().await, 0, "it can't be taken back");
    world.hands.set(start);
    let _other = world.run("set right").await;
    assert_eq!(reap().await, 0, "it has not expired");
    let node = Ibid::for_upkeep(world.store.clone(), takes_over_at_start());
    world.hands.advance(Duration::from_secs(25 * 3600));
    let reaped = upkeep::reap_once(&node, Retention::default()).await.expect("a round");
    assert_eq!(reaped.removed, 1, "a process that has seen no leap");
}

/// A lookup for one route that never finds anything.
struct LookupOf(&'static str);

impl OutcomeLookup for LookupOf {
    fn asks(&self, rule: &Reconcile) -> bool {
        assert!(!self.0.is_empty(), "for a test");
        rule.route.as_deref() == Some(self.0)
    }

    fn find(&self, _: UnknownRequest) -> BoxFuture<'static, LookupResult> {
        Box::pin(async { LookupResult::Nothing })
    }
}

fn reconciled_by(route: &str) -> Policy {
    let mut rule = Reconcile::new(Duration::from_secs(10), 5);
    rule.route = Some(route.to_owned());
    Policy::default().with(|policy| policy.reconcile = Some(rule))
}

#[tokio::test(start_paused = true)]
async fn the_reconciler_gets_past_records_of_other_processes() {
    let world = world(Policy::default()).await;
    for n in 0..1_100 {
        let route = if n == 1_099 { "ours" } else { "theirs" };
        let outcome =
            world.ibid.begin(ask(&world.ibid, "shop", &format!("k{n}"), reconciled_by(route))).await;
        let Ok(Begin::Run(attempt)) = outcome else { panic!("{outcome:?}") };
        let _ = attempt.unknown(ErrorCode::Broken).await;
        world.hands.advance(Duration::from_micros(1));
    }
    world.hands.advance(Duration::from_secs(600));
    let node = Ibid::for_upkeep(world.store.clone(), takes_over_at_start());
    node.reconcile_with(Arc::new(LookupOf("ours")));
    let mut asked = 0;
    for _ in 0..2 {
        asked += upkeep::reconcile_once(&node).await.expect("the store answers").asked;
    }
    assert_eq!(asked, 1);
}

#[tokio::test(start_paused = true)]
async fn a_chore_that_panics_ends_no_other() {
    let world = world(Policy::default()).await;
    let outcome = world.ibid.begin(ask(&world.ibid, "shop", "k", reconciled_by("theirs"))).await;
    let Ok(Begin::Run(attempt)) = outcome else { panic!("{outcome:?}") };
    let _ = attempt.unknown(ErrorCode::Broken).await;
    world.hands.advance(Duration::from_secs(600));
    let node = Ibid::for_upkeep(world.store.clone(), takes_over_at_start());
    node.reconcile_with(Arc::new(LookupOf("")));
    let chores = tokio::spawn(upkeep::run(node.clone(), Schedule::default()));
    let status = |name| node.chores().into_iter().find(|chore| chore.name == name);
    let panicked_at = loop {
        match status("reconciler").and_then(|chore| chore.failed_at) {
            Some(failed_at) => break failed_at,
            None => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    };
    // Both go on: the reconciler panics again, and the sweeper succeeds.
    let is_later = |at: Option<SystemTime>| at > Some(panicked_at);
    while !status("reconciler").is_some_and(|chore| is_later(chore.failed_at))
        || !status("sweeper").is_some_and(|chore| is_later(chore.succeeded_at))
    {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    chores.abort();
}

/// Stores a report that a record was executed, without applying it.
pub(super) async fn report(world: &NodeOnFaultyStore, id: RecordId, owner: Option<Nonce>, event: usize) {
    let answer =
        AttemptResponse { status: 201, retry_after: false, kept: None, provider_id: None, proof: None };
    let evidence = Evidence {
        name: EventName { source: "psp".into(), event: event.to_string() },
        about: EvidenceSubject::Record(id),
        owner,
        what: Observation::Executed(answer),
        age: Duration::ZERO,
    };
    world.store.insert_evidence(evidence, Duration::from_secs(3600)).await.expect("stored");
}

#[tokio::test]
async fn the_evidence_chore_gets_past_evidence_without_a_record() {
    let world = world(Policy::default()).await;
    // As if its process had died before it looked for evidence.
    let name = TestRecord::fresh();
    let record = put(&*world.store, &insert(&name, draft(&name, State::Unknown))).await.record;
    // As much as one round reads, and it stays.
    let without_record = 16 * 256;
    for event in 0..without_record {
        report(&world, TestRecord::fresh().id, None, event).await;
    }
    report(&world, record.id, Some(record.owner), without_record).await;
    let node = Ibid::for_upkeep(world.store.clone(), takes_over_at_start());
    assert_eq!(upkeep::apply_evidence_once(&node).await.expect("a round"), 0);
    assert_eq!(upkeep::apply_evidence_once(&node).await.expect("a round"), 1);
    assert_eq!(world.state().await, State::Completed);
}
