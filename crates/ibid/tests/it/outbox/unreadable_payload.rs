//! Payloads that a handler's type can't be parsed from: no call is made, and no result is recorded without its rows.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ibid::operator::Operator;
use ibid::outbox::{
    BoxError, CallOutcome, EffectCall, EffectHandler, EffectPayload, SettledEffect, VerifyOutcome, Worker,
    WorkerRound,
};
use ibid::transaction::rusqlite::{Rusqlite, RusqliteTx};
use ibid::upkeep::apply_evidence_once;
use ibid_core::effect::NewEffect;
use ibid_core::evidence::EffectRef;
use ibid_core::machine::EffectState::{Claimed, Dead, Done, Unknown};
use ibid_core::record::State;

use super::every_database::{evidence_report, executed_observation};
use super::harness::{NodeOnSqlite, Provider, because, made_outcome};

/// The card number must not get into a reason: it is shown to operators.
const PAYLOAD: &str = r#"{"amount_cents": "4111 1111 1111 1111"}"#;

/// A handler of an earlier release, which expects a number of cents where today's payloads have a text, or today's.
struct Charge<P> {
    seen: Arc<Mutex<Vec<&'static str>>>,
    payload: PhantomData<fn() -> P>,
}

impl<P> Charge<P> {
    fn new() -> Charge<P> {
        Charge { seen: Arc::default(), payload: PhantomData }
    }

    /// Returns a worker of this handler alone.
    fn worker(&self, world: &NodeOnSqlite) -> Worker<Rusqlite>
    where
        P: EffectPayload + 'static,
    {
        let same = Charge::<P> { seen: self.seen.clone(), payload: PhantomData };
        Worker::builder(world.ibid.clone(), world.database()).on("charge", same).build().unwrap()
    }
}

#[derive(serde::Deserialize)]
struct Cents {
    #[expect(dead_code, reason = "only parsed")]
    amount_cents: i64,
}

#[derive(serde::Deserialize)]
struct Text {
    #[expect(dead_code, reason = "only parsed")]
    amount_cents: String,
}

impl<P> Charge<P> {
    fn see(&self, what: &'static str) {
        self.seen.lock().unwrap().push(what);
    }

    fn list_calls(&self) -> Vec<&'static str> {
        self.seen.lock().unwrap().clone()
    }
}

impl<P: EffectPayload> EffectHandler<RusqliteTx> for Charge<P> {
    type Payload = P;

    async fn call(&self, _: &EffectCall<P>) -> CallOutcome {
        self.see("call");
        made_outcome()
    }

    async fn verify(&self, _: &EffectCall<P>) -> VerifyOutcome {
        self.see("verify");
        VerifyOutcome::NotMade
    }

    async fn record(
        &self,
        call: &EffectCall<P>,
        _: &SettledEffect,
        tx: &mut RusqliteTx,
    ) -> Result<(), BoxError> {
        self.see("record");
        tx.execute("insert into ledger values ('recorded', ?1, '')", [&call.name])?;
        Ok(())
    }
}

fn charge() -> NewEffect {
    NewEffect::new("charge", "charge", PAYLOAD)
}

fn dead() -> WorkerRound {
    WorkerRound::default().with(|round| round.dead = 1)
}

#[tokio::test]
async fn an_unreadable_payload_is_dead_at_once_with_its_reason() {
    let (world, old) = (NodeOnSqlite::new().await, Charge::<Cents>::new());
    world.owe("k", charge().owing().repeatable()).await;
    let old_worker = old.worker(&world);
    assert_eq!(old_worker.run_once().await.unwrap(), dead());
    let effect = world.only_effect().await;
    let why = effect.last_error.clone().unwrap();
    assert_eq!((effect.state, effect.due_at, world.record("k").await.state), (Dead, None, State::Unknown));
    assert!(why.contains("::Cents`") && why.contains("another type, at line 1 column"), "{why}");
    assert!(!why.contains("4111"), "{why}");

    world.pass(3600);
    assert!(old_worker.run_once().await.unwrap().is_idle(), "it is not tried again");
    assert_eq!((old.list_calls(), world.ledger().len()), (vec![], 0));

    // The next release can read it.
    drop(old_worker);
    Operator::new(&world.ibid).retry(effect.seq, &because("deployed")).await.unwrap();
    let new = Charge::<Text>::new();
    assert_eq!(new.worker(&world).run_once().await.unwrap().done, 1);
    assert_eq!((new.list_calls(), world.ledger()), (vec!["call", "record"], vec!["recorded".to_owned()]));
}

#[tokio::test]
async fn an_uncertain_call_with_an_unreadable_payload_stays_unknown() {
    let (world, old) = (NodeOnSqlite::new().await, Charge::<Cents>::new());
    let uncertain = Provider::new("w", |_| CallOutcome::Uncertain { why: "reset".into() });
    let rules = charge().verified().rules.with(|rules| rules.tries_max = 3);
    world.pay("k", [charge().rules(rules)]).await;
    assert_eq!(world.worker(&uncertain).run_once().await.unwrap().again, 1);
    let old_worker = old.worker(&world);
    world.pass(1000);
    assert_eq!(old_worker.run_once().await.unwrap().again, 1);
    world.pass(1000);
    assert_eq!(old_worker.run_once().await.unwrap(), dead());
    let effect = world.only_effect().await;
    assert_eq!((effect.state, effect.due_at), (Unknown, None), "never dead: the call may have been made");
    assert!(effect.last_error.unwrap().contains("::Cents`"));
    assert_eq!(old.list_calls(), [""; 0]);
}

/// A webhook reports a call whose payload this release can't read. Without the rows, the effect must not be done.
#[tokio::test]
async fn evidence_waits_for_a_handler_that_can_read_the_payload() {
    let (world, old) = (NodeOnSqlite::new().await, Charge::<Cents>::new());
    let uncertain = Provider::new("w", |_| CallOutcome::Uncertain { why: "reset".into() });
    world.pay("k", [charge()]).await;
    assert_eq!(world.worker(&uncertain).run_once().await.unwrap(), dead());
    let at = EffectRef::DownstreamKey(world.only_effect().await.downstream_key);

    let old_worker = old.worker(&world);
    let report = evidence_report("evt_1", &at, executed_observation(201, "ch_9"), Duration::ZERO);
    let error = world.ibid.report_evidence(report).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(apply_evidence_once(&world.ibid).await.unwrap(), 0);
    assert_eq!((world.only_effect().await.state, world.ledger().len()), (Unknown, 1));

    drop(old_worker);
    let new = Charge::<Text>::new();
    let _new_worker = new.worker(&world);
    assert_eq!(apply_evidence_once(&world.ibid).await.unwrap(), 1);
    assert_eq!((world.only_effect().await.state, world.ledger().len()), (Done, 2));
    assert_eq!((old.list_calls(), new.list_calls()), (vec![], vec!["record"]));
}

/// The worker that made the call stored its result and could not write its rows. A release that can't read the payload claims
/// the effect: it must neither make the call again nor end the effect without its rows.
#[tokio::test]
async fn a_stored_result_waits_for_a_handler_that_can_read_it() {
    let world = NodeOnSqlite::new().await;
    // The old worker tries to record the result until its lease ends.
    let rules = charge().rules.with(|rules| rules.lease_ms = 3000);
    world.pay("k", [charge().rules(rules)]).await;
    let (_gate, running) = world.silent_worker().await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    world.sql("update ibid_effect_call set result = cast('receipt' as blob)");
    world.pass(4);
    let old = Charge::<Cents>::new();
    let lost = WorkerRound::default().with(|round| round.lost = 1);
    assert_eq!(old.worker(&world).run_once().await.unwrap(), lost);
    let effect = world.only_effect().await;
    assert_eq!((effect.state, effect.result.as_deref()), (Claimed, Some(&b"receipt"[..])));
    assert!(effect.last_error.unwrap().contains("::Cents`"));

    world.pass(4);
    let new = Charge::<Text>::new();
    assert_eq!(new.worker(&world).run_once().await.unwrap().done, 1);
    assert_eq!((old.list_calls(), new.list_calls(), world.ledger().len()), (vec![], vec!["record"], 1));
}
