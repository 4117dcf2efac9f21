//! Calls that may have been made: repeated under their key, verified, or left to an operator.

use ibid::outbox::VerifyOutcome;

use super::harness::Gate;
use super::*;

#[tokio::test]
async fn a_lapsed_repeatable_effect_is_called_again_under_its_key() {
    let world = NodeOnSqlite::new().await;
    world.pay("k", [NewEffect::new("charge", "charge", "").repeatable()]).await;
    let (gate, silent) = world.silent_worker().await;
    world.pass(61);
    let provider = Provider::new("bob", |_| made_outcome());
    let worker = world.worker(&provider);
    assert_eq!(worker.run_once().await.unwrap().again, 1, "noticed, and queued again");
    assert_eq!(world.only_effect().await.state, Queued);
    world.pass(10);
    assert_eq!(worker.run_once().await.unwrap().done, 1);
    assert_eq!(provider.calls()[0].downstream_key, gate.provider.calls()[0].downstream_key);
    silent.abort();
}

#[tokio::test]
async fn a_lapsed_non_repeatable_effect_is_never_called_again() {
    let world = NodeOnSqlite::new().await;
    world.pay("k", [NewEffect::new("charge", "charge", "")]).await;
    let (_gate, silent) = world.silent_worker().await;
    world.pass(61);
    let provider = Provider::new("bob", |_| made_outcome());
    let worker = world.worker(&provider);
    assert_eq!(worker.run_once().await.unwrap().dead, 1);
    world.pass(1_000_000);
    assert!(worker.run_once().await.unwrap().is_idle());
    let effect = world.only_effect().await;
    assert_eq!((effect.state, effect.due_at), (Unknown, None));
    assert!(provider.calls().is_empty());
    assert_eq!(world.ledger(), ["bob charge unknown: the worker that held it went silent"]);
    silent.abort();
}

#[tokio::test]
async fn verify_decides_about_an_uncertain_call() {
    let uncertain = || CallOutcome::Uncertain { why: "reset by peer".into() };
    for (says, state) in [(VerifyOutcome::Made(harness::a_charge()), Done), (VerifyOutcome::NotMade, Queued)]
    {
        let world = NodeOnSqlite::new().await;
        let provider = Provider::new("w", move |_| uncertain());
        provider.will_verify([says]);
        world.pay("k", [NewEffect::new("charge", "charge", "").verified()]).await;
        let worker = world.worker(&provider);
        assert_eq!(worker.run_once().await.unwrap().again, 1);
        let effect = world.only_effect().await;
        assert_eq!((effect.state, effect.last_error.as_deref()), (Unknown, Some("reset by peer")));
        world.pass(59);
        assert!(worker.run_once().await.unwrap().is_idle(), "not asked before it can have settled");
        world.pass(17);
        worker.run_once().await.unwrap();
        assert_eq!(world.only_effect().await.state, state);
        assert_eq!(provider.calls().len(), 1);
    }
}

#[tokio::test]
async fn an_effect_verified_as_not_made_is_called_as_if_new() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |call| match call.tries {
        1 => CallOutcome::Uncertain { why: "time-out".into() },
        _ => made_outcome(),
    });
    provider.will_verify([VerifyOutcome::NotMade]);
    world.pay("k", [NewEffect::new("charge", "charge", "").verified()]).await;
    let worker = world.worker(&provider);
    worker.run_once().await.unwrap();
    // The key's window has passed at the lookup; no call was made under the key.
    world.pass(25 * 3600);
    assert_eq!(worker.run_once().await.unwrap().again, 1);
    assert_eq!(world.only_effect().await.called_at, None);
    world.pass(60);
    assert_eq!(worker.run_once().await.unwrap().done, 1);
    assert_eq!(provider.calls().len(), 2);
}

#[tokio::test]
async fn an_inconclusive_verification_leaves_the_effect_unknown() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |_| CallOutcome::Uncertain { why: "time-out".into() });
    let rules = NewEffect::new("", "", "").verified().rules.with(|rules| rules.tries_max = 4);
    world.pay("k", [NewEffect::new("charge", "charge", "").rules(rules)]).await;
    let worker = world.worker(&provider);
    worker.run_once().await.unwrap();
    for _ in 0..2 {
        world.pass(1000);
        assert_eq!(worker.run_once().await.unwrap().again, 1);
    }
    world.pass(1000);
    assert_eq!(worker.run_once().await.unwrap().dead, 1);
    assert_eq!((world.only_effect().await.state, world.only_effect().await.due_at), (Unknown, None));
    assert_eq!((provider.calls().len(), provider.verify_count()), (1, 3));
    assert_eq!(world.ledger(), ["w charge unknown: the provider was asked, and could not tell"]);
}

#[tokio::test]
async fn past_the_key_window_a_repeatable_effect_is_not_called() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |_| not_made("down"));
    world.pay("k", [NewEffect::new("charge", "charge", "").repeatable()]).await;
    let worker = world.worker(&provider);
    worker.run_once().await.unwrap();
    world.pass(24 * 3600);
    assert_eq!(worker.run_once().await.unwrap().dead, 1);
    assert_eq!((world.only_effect().await.state, provider.calls().len()), (Unknown, 1));
    // With an operator's confirmation it is called all the same.
    Operator::new(&world.ibid)
        .retry(world.only_effect().await.seq, &because("the provider has no such charge"))
        .await
        .unwrap();
    worker.run_once().await.unwrap();
    assert_eq!((world.only_effect().await.state, provider.calls().len()), (Queued, 2));
}

#[tokio::test]
async fn panics_and_time_outs_of_a_handler_are_uncertain_calls() {
    let panics = Provider::new("w", |_| panic!("a bug in the handler"));
    let hangs = Gate::closed("w").provider;
    for (provider, said) in [(panics, "the handler panicked"), (hangs, "the call took too long")] {
        let world = NodeOnSqlite::new().await;
        world.pay("k", [NewEffect::new("charge", "charge", "")]).await;
        let worker = world.building(&provider).timeout(Duration::from_millis(100)).build().unwrap();
        assert_eq!(worker.run_once().await.unwrap().dead, 1);
        let effect = world.only_effect().await;
        assert_eq!((effect.state, effect.last_error.as_deref()), (Unknown, Some(said)));
    }
}
