//! Unknown outcomes whose effects are still open.

use std::sync::Arc;
use std::time::Duration;

use ibid::operator::Operator;
use ibid::outbox::CallOutcome;
use ibid::outcome::{Begin, Outcome};
use ibid::upkeep::{Retention, reap_once};
use ibid_core::effect::NewEffect;
use ibid_core::policy::Policy;
use ibid_core::record::State;

use super::harness::{NodeOnSqlite, Provider, because};

#[tokio::test]
async fn an_unknown_outcome_with_an_open_effect_does_not_expire() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |_| CallOutcome::Refused { why: "no such account".into() });
    let mut ask = world.ask("k");
    ask.policy = Arc::new(
        Policy::default().with(|policy| policy.unknown_retention = Some(Duration::from_secs(2 * DAY))),
    );
    let Begin::Run(mut attempt) = world.ibid.begin(ask).await.unwrap() else { panic!("it is new") };
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    inside.enqueue(NewEffect::new("charge", "charge", "").owing()).await.unwrap();
    assert!(matches!(inside.owe().await.unwrap(), Outcome::AwaitingEffect));
    let worker = world.worker(&provider);
    while !worker.run_once().await.unwrap().is_idle() {}
    assert_eq!(world.record("k").await.state, State::Unknown);
    let settled = async || reap_once(&world.ibid, Retention::default()).await.unwrap().settled;
    world.pass(2 * DAY);
    assert_eq!(settled().await, 0, "its effect waits for an operator");
    assert_eq!(world.record("k").await.state, State::Unknown);
    Operator::new(&world.ibid)
        .discard(world.only_effect().await.seq, &because("settled by phone"))
        .await
        .unwrap();
    assert_eq!(settled().await, 1);
}

const DAY: u64 = 24 * 3600;
