//! The outbox and its worker on SQLite with a manual clock: an effect that is enqueued with business rows runs once, or
//! becomes a dead letter.

use std::time::Duration;

use ibid::operator::Operator;
use ibid::outbox::{self, CallOutcome, WorkerRound};
use ibid::outcome::{Begin, Outcome};
use ibid::upkeep::{Retention, reap_once, reap_preview};
use ibid_core::effect::{EffectRules, NewEffect};
use ibid_core::machine::EffectState::{Claimed, Dead, Discarded, Done, Queued, Unknown};
use ibid_core::record::State;

#[cfg(all(feature = "postgres", feature = "sqlx-postgres"))]
mod aggregates;
mod concurrency;
mod copy_effects;
mod effect_metrics;
mod effect_rows;
mod every_database;
mod expiry;
mod harness;
#[cfg(all(feature = "mysql", feature = "sqlx-mysql"))]
mod mysql;
mod operator_actions;
mod owed_response;
#[cfg(all(feature = "postgres", feature = "sqlx-postgres"))]
mod postgres;
mod starved_node;
mod tenant_shares;
mod trace_context;
mod uncertain_calls;
mod unreadable_payload;
mod webhook_evidence;
mod webhook_http;
mod worker_loop;

use crate::lossy_database::Reply;
use harness::{NodeOnSqlite, Provider, because, made_outcome, not_made};

#[tokio::test]
async fn an_effect_enqueued_with_a_business_row_is_carried_out_once() {
    let (world, provider) = (NodeOnSqlite::new().await, Provider::new("w", |_| made_outcome()));
    world.pay("k", [NewEffect::new("charge", "charge", "42")]).await;
    let worker = world.worker(&provider);
    assert_eq!(worker.run_once().await.unwrap(), WorkerRound::default().with(|round| round.done = 1));
    assert!(worker.run_once().await.unwrap().is_idle());

    let effect = world.only_effect().await;
    assert_eq!((effect.state, effect.tries, effect.due_at), (Done, 1, None));
    assert_eq!(effect.result.as_deref(), Some(&b"receipt"[..]));
    assert_eq!(effect.provider_id.as_deref(), Some("ch_1"));
    assert!(effect.done_at.is_some() && effect.called_at.is_some());
    let calls = provider.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!((&calls[0].payload[..], calls[0].tries), (&b"42"[..], 1));
    assert_eq!(calls[0].downstream_key, effect.downstream_key);
    assert_eq!(calls[0].record, effect.record);
    assert_eq!(world.ledger(), ["w charge done"]);
}

#[tokio::test]
async fn a_rolled_back_transaction_enqueues_nothing() {
    let world = NodeOnSqlite::new().await;
    let mut attempt = world.begin("k").await;
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    inside.enqueue(NewEffect::new("charge", "charge", "")).await.unwrap();
    drop(inside);
    assert!(world.effects().await.is_empty());
}

#[tokio::test]
async fn a_replay_enqueues_nothing() {
    let world = NodeOnSqlite::new().await;
    world.pay("k", [NewEffect::new("charge", "charge", "")]).await;
    assert!(matches!(world.ibid.begin(world.ask("k")).await.unwrap(), Begin::Skip(Outcome::Completed(_))));
    assert_eq!(world.effects().await.len(), 1);
}

#[tokio::test]
async fn an_ended_effect_is_reaped_but_a_dead_one_never() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |call| match call.name.as_str() {
        "mail" => CallOutcome::Refused { why: "no such address".into() },
        _ => made_outcome(),
    });
    let effect = |name: &str| NewEffect::new(name, "charge", "");
    world.pay("k", [effect("charge"), effect("mail")]).await;
    world.pay("other", [effect("charge")]).await;
    let worker = world.worker(&provider);
    while !worker.run_once().await.unwrap().is_idle() {}
    let keep = Retention::default().with(|keep| keep.effects = Duration::from_secs(10 * DAY));
    let reap = async || {
        let outlook = reap_preview(&**world.ibid.store(), keep).await.unwrap();
        let harvest = reap_once(&world.ibid, keep).await.unwrap();
        assert!(outlook.effects <= harvest.effects, "more may go once their record has: {outlook:?}");
        (harvest.removed, harvest.effects)
    };
    world.pass(DAY);
    assert_eq!(reap().await, (1, 0), "a record with a dead effect stays; an effect outlives its record");
    world.pass(10 * DAY);
    assert_eq!(reap().await, (0, 1), "that of the record which is gone");
    world.pass(1000 * DAY);
    assert_eq!(reap().await, (0, 0), "a dead letter waits for an operator, and so does its record");
    assert_eq!(world.effects().await.len(), 2);
    Operator::new(&world.ibid)
        .discard(world.effects().await[1].seq, &because("settled by phone"))
        .await
        .unwrap();
    assert_eq!(reap().await, (1, 1), "then the record goes, and what was done long ago");
    let discarded = world.only_effect().await;
    assert_eq!((discarded.state, discarded.done_at.is_some()), (Discarded, true));
    world.pass(10 * DAY);
    assert_eq!(reap().await, (0, 1), "its time counts from when it was discarded");
    assert!(world.effects().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_carry_out_five_hundred_effects_once_each() {
    let world = NodeOnSqlite::new().await;
    for key in 0..50 {
        let names = (0..10).map(|n| NewEffect::new(format!("e{n}"), "charge", ""));
        world.pay(&format!("k{key}"), names).await;
    }
    let (ann, bob) = (Provider::new("ann", |_| made_outcome()), Provider::new("bob", |_| made_outcome()));
    tokio::join!(world.drain(&ann), world.drain(&bob));

    let mut keys: Vec<_> = ann.calls().into_iter().chain(bob.calls()).map(|c| c.downstream_key).collect();
    assert_eq!(keys.len(), 500);
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 500, "each under a separate key");
    assert_eq!(world.ledger().len(), 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effects_of_one_aggregate_keep_their_order_under_two_workers() {
    let world = NodeOnSqlite::new().await;
    for n in 0..20 {
        let effect = |who: &str| NewEffect::new(who, "charge", n.to_string()).ordered_by(who);
        world.pay(&format!("k{n}"), [effect("x"), effect("y")]).await;
    }
    let (ann, bob) = (Provider::new("w", |_| made_outcome()), Provider::new("w", |_| made_outcome()));
    tokio::join!(world.drain(&ann), world.drain(&bob));
    for who in ["x", "y"] {
        let rows = world.payloads(who);
        assert_eq!(rows, (0..20).map(|n| n.to_string()).collect::<Vec<_>>(), "aggregate {who}");
    }
}

#[tokio::test]
async fn a_dead_letter_blocks_its_aggregate_until_discarded() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |call| match call.name.as_str() {
        "first" => CallOutcome::Refused { why: "card expired".into() },
        _ => made_outcome(),
    });
    let ordered = |name: &str| NewEffect::new(name, "charge", "").ordered_by("account 7");
    world.pay("k", [ordered("first"), ordered("second")]).await;
    let worker = world.worker(&provider);
    assert_eq!(worker.run_once().await.unwrap().dead, 1);
    assert!(worker.run_once().await.unwrap().is_idle(), "the second waits");
    Operator::new(&world.ibid)
        .discard(world.effects().await[0].seq, &because("settled by phone"))
        .await
        .unwrap();
    assert_eq!(worker.run_once().await.unwrap().done, 1);
    let states: Vec<_> = world.effects().await.iter().map(|effect| effect.state).collect();
    assert_eq!(states, [Discarded, Done]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_comes_back_late_is_refused_with_its_rows() {
    let world = NodeOnSqlite::new().await;
    world.pay("k", [NewEffect::new("charge", "charge", "").repeatable()]).await;
    let (gate, zombie) = world.silent_worker().await;
    world.pass(61);
    let worker = world.worker(&Provider::new("bob", |_| made_outcome()));
    worker.run_once().await.unwrap();
    world.pass(10);
    assert_eq!(worker.run_once().await.unwrap().done, 1);
    let before = world.only_effect().await;

    gate.open();
    assert_eq!(zombie.await.unwrap(), WorkerRound::default().with(|round| round.lost = 1));
    assert_eq!(world.ledger(), ["bob charge done"]);
    let after = world.only_effect().await;
    assert_eq!((after.version, after.result), (before.version, before.result));
}

#[tokio::test]
async fn a_claim_that_ends_before_its_call_is_returned_uncalled() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |_| made_outcome());
    let rules = EffectRules::default().with(|rules| rules.lease_ms = 0);
    world.pay("k", [NewEffect::new("charge", "charge", "").rules(rules)]).await;
    assert_eq!(world.worker(&provider).run_once().await.unwrap().again, 1);
    assert!(provider.calls().is_empty());
    assert_eq!(
        world.only_effect().await.last_error.as_deref(),
        Some("the lease was over before the call began")
    );
}

#[tokio::test]
async fn pauses_grow_and_are_never_shorter_than_the_provider_asks() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |call| match call.tries {
        4 => CallOutcome::NotMade { why: "503".into(), after: Some(Duration::from_secs(900)) },
        _ => not_made("503"),
    });
    world.pay("k", [NewEffect::new("charge", "charge", "")]).await;
    let worker = world.worker(&provider);
    for (tries, pause) in [(1, 2.0), (2, 4.0), (3, 8.0)] {
        assert_eq!(worker.run_once().await.unwrap().again, 1);
        let effect = world.only_effect().await;
        assert_eq!((effect.tries, effect.state), (tries, Queued));
        let due_in = effect.due_at.unwrap().since(effect.now).as_secs_f64();
        assert!((0.75 * pause..=1.25 * pause).contains(&due_in), "try {tries}: {due_in}");
        world.pass(10);
    }
    worker.run_once().await.unwrap();
    let effect = world.only_effect().await;
    let due_in = effect.due_at.unwrap().since(effect.now).as_secs_f64();
    assert!((900.0..=1.25 * 900.0).contains(&due_in), "{due_in}");
    world.pass(899);
    assert!(worker.run_once().await.unwrap().is_idle());
}

#[tokio::test]
async fn tries_end_in_a_dead_letter_with_the_last_error() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |call| not_made(&format!("{}: {}", call.tries, "x".repeat(5000))));
    let rules = EffectRules::default().with(|rules| rules.tries_max = 3);
    world.pay("k", [NewEffect::new("charge", "charge", "").rules(rules)]).await;
    let worker = world.worker(&provider);
    for _ in 0..2 {
        assert_eq!(worker.run_once().await.unwrap().again, 1);
        world.pass(1000);
    }
    assert_eq!(worker.run_once().await.unwrap().dead, 1);
    let effect = world.only_effect().await;
    assert_eq!((effect.state, effect.due_at, effect.tries), (Dead, None, 3));
    let error = effect.last_error.unwrap();
    assert!(error.starts_with("3: xxx") && error.len() < 1100, "{}", error.len());
    assert_eq!(world.ledger().len(), 1);
    world.pass(1_000_000);
    assert!(worker.run_once().await.unwrap().is_idle());
}

#[tokio::test]
async fn an_effect_that_owes_the_answer_gives_it_to_who_waits() {
    let (world, provider) = (NodeOnSqlite::new().await, Provider::new("w", |_| made_outcome()));
    world.owe("k", NewEffect::new("charge", "charge", "").owing()).await;
    assert_eq!(world.record("k").await.state, State::Pending);
    let (ibid, ask) = (world.ibid.clone(), world.ask("k"));
    let waiter = tokio::spawn(async move { ibid.wait(ask, Duration::from_secs(60)).await });
    assert_eq!(world.worker(&provider).run_once().await.unwrap().done, 1);
    match waiter.await.unwrap().unwrap() {
        Outcome::Completed(kept) => {
            assert_eq!((kept.response.status, &kept.response.body[..]), (201, &b"paid"[..]))
        }
        other => panic!("not answered: {other:?}"),
    }
    assert_eq!(world.record("k").await.state, State::Completed);
}

#[tokio::test]
async fn a_dead_effect_made_after_all_answers_its_record() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |call| match call.tries {
        1 if call.provider_id.is_none() => CallOutcome::Refused { why: "card declined".into() },
        _ => made_outcome(),
    });
    world.owe("k", NewEffect::new("charge", "charge", "").owing()).await;
    assert_eq!(world.worker(&provider).run_once().await.unwrap().dead, 1);
    assert_eq!(world.record("k").await.state, State::Unknown);
    assert!(matches!(world.ibid.begin(world.ask("k")).await.unwrap(), Begin::Skip(Outcome::Unknown { .. })));
    assert_eq!(world.ledger(), ["w charge dead: card declined"]);

    let seq = world.only_effect().await.seq;
    Operator::new(&world.ibid).retry(seq, &because("another card")).await.unwrap();
    assert_eq!(world.only_effect().await.tries, 0);
    let other = Provider::new("w", |_| made_outcome());
    assert_eq!(world.worker(&other).run_once().await.unwrap().done, 1);
    assert_eq!(world.record("k").await.state, State::Completed);
    assert!(matches!(world.ibid.begin(world.ask("k")).await.unwrap(), Begin::Skip(Outcome::Completed(_))));
}

#[tokio::test]
async fn a_call_without_its_owed_answer_leaves_the_record_unknown() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |_| CallOutcome::Made(outbox::CallResult::default()));
    world.owe("k", NewEffect::new("charge", "charge", "").owing()).await;
    assert_eq!(world.worker(&provider).run_once().await.unwrap().done, 1);
    assert_eq!((world.only_effect().await.state, world.record("k").await.state), (Done, State::Unknown));
}

#[tokio::test]
async fn an_unrecorded_result_is_recorded_without_a_second_call() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |_| made_outcome());
    let rules = EffectRules::default().with(|rules| rules.lease_ms = 300);
    world.pay("k", [NewEffect::new("charge", "charge", "").rules(rules)]).await;
    world.sql("alter table ledger rename to elsewhere");
    let worker = world.worker(&provider);
    assert_eq!(worker.run_once().await.unwrap().lost, 1);
    let effect = world.only_effect().await;
    assert_eq!((effect.state, effect.provider_id.as_deref()), (Claimed, Some("ch_1")));
    assert!(effect.last_error.unwrap().contains("no such table"));

    world.sql("alter table elsewhere rename to ledger");
    world.pass(61);
    assert_eq!(worker.run_once().await.unwrap().done, 1);
    assert_eq!((provider.calls().len(), world.ledger()), (1, vec!["w charge done".to_owned()]));
}

#[tokio::test]
async fn a_result_whose_commit_got_no_reply_is_written_once() {
    for reply in [Reply::Lost, Reply::NeverSent] {
        let world = NodeOnSqlite::new().await;
        let provider = Provider::new("w", |_| made_outcome());
        // Not repeatable: a call that is known to have been made must not end as unknown.
        world.pay("k", [NewEffect::new("charge", "charge", "")]).await;
        let worker = world.lossy_worker(&provider, &[Reply::Comes, reply]);
        assert_eq!(worker.run_once().await.unwrap().done, 1, "{reply:?}");
        assert_eq!(world.only_effect().await.state, Done);
        assert_eq!((provider.calls().len(), world.ledger().len()), (1, 1), "{reply:?}");
    }
}

#[tokio::test]
async fn a_claim_that_got_no_reply_is_not_called_and_given_back() {
    for (reply, round) in [
        (Reply::Lost, WorkerRound::default().with(|round| round.again = 1)),
        (Reply::NeverSent, WorkerRound::default().with(|round| round.lost = 1)),
    ] {
        let world = NodeOnSqlite::new().await;
        let provider = Provider::new("w", |_| made_outcome());
        world.pay("k", [NewEffect::new("charge", "charge", "")]).await;
        let worker = world.lossy_worker(&provider, &[reply]);
        assert_eq!(worker.run_once().await.unwrap(), round, "{reply:?}");
        assert_eq!((world.only_effect().await.state, provider.calls().len()), (Queued, 0), "{reply:?}");
        world.pass(10);
        assert_eq!(worker.run_once().await.unwrap().done, 1);
    }
}

const DAY: u64 = 24 * 3600;
