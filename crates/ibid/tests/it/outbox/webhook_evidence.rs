//! A provider's evidence about a call, on both databases: it settles an unknown effect once, with all that follows from it.

use std::sync::Arc;
use std::time::Duration;

use ibid::evidence::EvidenceResult;
use ibid::operator::Operator;
use ibid::outbox::{CallOutcome, WorkerRound};
use ibid::outcome::{Begin, Outcome};
use ibid::transaction::Database;
use ibid::upkeep::apply_evidence_once;
use ibid_core::change::HistoryKind;
use ibid_core::effect::{EffectFilter, EffectRules, NewEffect, downstream_key};
use ibid_core::evidence::{EffectRef, Evidence, EvidenceQuery, EvidenceSubject};
use ibid_core::machine::EffectState::{Claimed, Discarded, Done, Queued, Unknown};
use ibid_core::machine::Observation;
use ibid_core::record::State;

use super::every_database::{
    Psp, Site, charge, evidence_report, executed_observation, lost, name, on_every_database, settled_at_once,
};
use super::harness::{NodeOnSqlite, ask, because, begin, effects_sql};

on_every_database!(
    an_unknown_effect_is_settled_by_its_downstream_key,
    an_unknown_effect_is_settled_by_its_provider_id,
    the_record_that_waits_for_it_is_answered_by_the_same_commit,
    evidence_during_a_call_is_used_once_its_outcome_is_lost,
    evidence_from_before_the_effect_is_kept_for_it,
    not_executed_evidence_counts_only_after_the_call,
    of_a_webhook_and_a_worker_that_asks_one_settles_it,
    a_worker_that_has_the_answer_is_not_disturbed,
    upkeep_applies_evidence_that_a_crash_left_unused,
    a_process_without_a_worker_keeps_it_for_one_that_has,
    contradicting_evidence_changes_nothing,
    an_id_that_two_effects_have_settles_neither,
    others_of_its_aggregate_run_once_it_is_settled,
    an_executed_effect_is_not_called_by_a_waiting_try,
    the_id_of_a_call_that_was_not_made_is_forgotten_with_it,
);

async fn an_unknown_effect_is_settled_by_its_downstream_key<D: Database + Clone + 'static>(site: Site<D>) {
    let psp = Psp::new([lost()]);
    site.pay("k", charge()).await;
    let worker = site.worker(&psp);
    assert_eq!(worker.run_once().await.unwrap(), WorkerRound::default().with(|round| round.dead = 1));
    let unknown = site.only_effect().await;
    assert_eq!(unknown.state, Unknown);
    assert!(unknown.ended_at.is_some_and(|at| Some(at) >= unknown.called_at), "{unknown:?}");

    let at = site.by_key().await;
    assert_eq!(site.hear("evt_1", &at, executed_observation(201, "ch_9")).await, EvidenceResult::Settled);
    let done = site.only_effect().await;
    assert_eq!((done.state, done.ended_at, done.due_at), (Done, None, None));
    assert_eq!(done.result.as_deref(), Some(&br#"{"charge":"ch_9"}"#[..]));
    assert_eq!(done.provider_id.as_deref(), Some("ch_9"));
    assert_eq!(site.lines().await, ["unknown: reset", r#"done: {"charge":"ch_9"}"#]);
    let settled = ["effect `charge` by a webhook, unknown to done (event `evt_1` of `psp`)"];
    assert_eq!(site.history("k", HistoryKind::Settled).await, settled);

    for event in ["evt_1", "evt_2"] {
        assert_eq!(
            site.hear(event, &at, executed_observation(201, "ch_9")).await,
            EvidenceResult::Known,
            "{event} adds nothing"
        );
    }
    assert_eq!(site.only_effect().await.version, done.version, "nothing changes any more");
    assert_eq!((site.lines().await.len(), site.history("k", HistoryKind::Settled).await.len()), (2, 1));
    assert!(worker.run_once().await.unwrap().is_idle());
    assert_eq!(psp.calls(), 1, "nothing was called again");
    assert_eq!(apply_evidence_once(&site.ibid).await.unwrap(), 0);
    assert!(
        site.ibid
            .store()
            .evidence()
            .unwrap()
            .open_evidence(EvidenceQuery::Of(at.id()), None, 10)
            .await
            .unwrap()
            .items
            .is_empty(),
        "it is used up"
    );
}

async fn an_unknown_effect_is_settled_by_its_provider_id<D: Database + Clone + 'static>(site: Site<D>) {
    let psp = Psp::new([CallOutcome::Accepted { provider_id: "ch_7".into() }]);
    site.pay("k", charge()).await;
    let worker = site.worker(&psp);
    assert_eq!(worker.run_once().await.unwrap().dead, 1);
    let accepted = site.only_effect().await;
    assert_eq!((accepted.state, accepted.provider_id.as_deref()), (Unknown, Some("ch_7")));
    let at = |kind: &str, id: &str| EffectRef::ProviderId { kind: kind.into(), id: id.into() };
    for elsewhere in [at("refund", "ch_7"), at("charge", "ch_8")] {
        assert_eq!(
            site.hear("evt_0", &elsewhere, executed_observation(201, "ch_7")).await,
            EvidenceResult::Early
        );
    }
    assert_eq!(site.only_effect().await.state, Unknown, "those are others");
    assert_eq!(
        site.hear("evt_1", &at("charge", "ch_7"), executed_observation(201, "ch_7")).await,
        EvidenceResult::Settled
    );
    let done = site.only_effect().await;
    assert_eq!((done.state, done.provider_id.as_deref()), (Done, Some("ch_7")));
    assert_eq!(psp.calls(), 1);
}

async fn the_record_that_waits_for_it_is_answered_by_the_same_commit<D: Database + Clone + 'static>(
    site: Site<D>,
) {
    let psp = Psp::new([lost(), lost()]);
    let worker = site.worker(&psp);
    // One effect waits for its lookup, and its record is pending; the other is given up, and its record is unknown.
    for (key, effect, state) in [("a", charge().verified(), State::Pending), ("b", charge(), State::Unknown)]
    {
        site.owe(key, effect).await;
        worker.run_once().await.unwrap();
        assert_eq!(site.record(key).await.state, state);
        let of = EffectFilter::default().with(|filter| filter.record = Some(ask(&site.ibid, key).id));
        let effect = Operator::new(&site.ibid).effects(of).await.unwrap().0.remove(0);
        let at = EffectRef::DownstreamKey(effect.downstream_key);

        // Its rows can't be written, so nothing else of it is written either.
        psp.fails(u32::MAX);
        let before = site.lines().await;
        let event = format!("evt_{key}");
        let refused = site
            .ibid
            .report_evidence(evidence_report(&event, &at, executed_observation(402, "ch_9"), Duration::ZERO))
            .await;
        assert!(refused.is_err_and(|error| error.is_transient()), "it must be delivered again");
        assert_eq!((site.record(key).await.state, site.lines().await), (state, before));

        psp.fails(0);
        assert_eq!(apply_evidence_once(&site.ibid).await.unwrap(), 1, "it was kept");
        let record = site.record(key).await;
        assert_eq!(
            (record.state, record.note.status),
            (State::Completed, Some(402)),
            "a decline is an answer"
        );
        match site.ibid.begin(ask(&site.ibid, key)).await.unwrap() {
            Begin::Skip(Outcome::Completed(kept)) => {
                assert_eq!(&kept.response.body[..], br#"{"charge":"ch_9"}"#)
            }
            other => panic!("no replay: {other:?}"),
        }
        assert_eq!(site.hear(&event, &at, executed_observation(402, "ch_9")).await, EvidenceResult::Known);
    }
    assert_eq!(psp.calls(), 2);
}

async fn evidence_during_a_call_is_used_once_its_outcome_is_lost<D: Database + Clone + 'static>(
    site: Site<D>,
) {
    let psp = Psp::behind_a_gate([lost()]);
    site.pay("k", charge()).await;
    let worker = Arc::new(site.worker(&psp));
    let running = tokio::spawn({
        let worker = worker.clone();
        async move { worker.run_once().await.unwrap() }
    });
    psp.until_reached().await;
    let at = site.by_key().await;
    let claimed = site.only_effect().await;
    assert_eq!(claimed.state, Claimed);
    for _ in 0..2 {
        assert_eq!(site.hear("evt_1", &at, executed_observation(201, "ch_9")).await, EvidenceResult::Early);
    }
    assert_eq!(apply_evidence_once(&site.ibid).await.unwrap(), 0);
    assert_eq!(site.only_effect().await.version, claimed.version, "its worker is alive and not disturbed");
    psp.open();
    running.await.unwrap();
    site.until(Done).await;
    assert_eq!(site.lines().await, ["unknown: reset", r#"done: {"charge":"ch_9"}"#]);
    assert_eq!((psp.calls(), apply_evidence_once(&site.ibid).await.unwrap()), (1, 0));
}

async fn evidence_from_before_the_effect_is_kept_for_it<D: Database + Clone + 'static>(site: Site<D>) {
    let psp = Psp::new([lost()]);
    let mut attempt = begin(&site.ibid, "k").await;
    let record = site.record("k").await;
    let at = EffectRef::DownstreamKey(downstream_key(&record.id, record.birth, "charge"));
    assert_eq!(site.hear("evt_1", &at, executed_observation(201, "ch_9")).await, EvidenceResult::Early);
    assert_eq!(site.hear("evt_2", &at, Observation::NotExecuted).await, EvidenceResult::Premature);
    let mut inside = attempt.join_tx(site.database.begin().await.unwrap()).await.unwrap();
    inside.enqueue(charge().owing()).await.unwrap();
    let _ = inside.owe().await.unwrap();
    assert_eq!(site.only_effect().await.downstream_key, downstream_key(&record.id, record.birth, "charge"));
    let worker = site.worker(&psp);
    worker.run_once().await.unwrap();
    site.until(Done).await;
    assert_eq!(psp.calls(), 1);
}

async fn not_executed_evidence_counts_only_after_the_call<D: Database + Clone + 'static>(site: Site<D>) {
    let never = Observation::NotExecuted;
    let psp = Psp::behind_a_gate([lost(), lost(), lost()]);
    site.pay("k", settled_at_once()).await;
    assert_eq!(
        site.hear("evt_0", &site.by_key().await, never.clone()).await,
        EvidenceResult::Premature,
        "it is queued"
    );
    let worker = Arc::new(site.worker(&psp));
    let call = || {
        let worker = worker.clone();
        tokio::spawn(async move { worker.run_once().await.unwrap() })
    };
    let running = call();
    psp.until_reached().await;
    let at = site.by_key().await;
    assert_eq!(site.hear("evt_1", &at, never.clone()).await, EvidenceResult::Premature, "it is being called");
    psp.open();
    running.await.unwrap();
    assert_eq!(
        site.hear("evt_1", &at, never.clone()).await,
        EvidenceResult::Duplicate,
        "told again it is no younger"
    );
    let old = evidence_report("evt_2", &at, never.clone(), Duration::from_secs(3600));
    assert_eq!(
        site.ibid.report_evidence(old).await.unwrap(),
        EvidenceResult::Premature,
        "it speaks of an hour ago"
    );
    assert_eq!(
        (apply_evidence_once(&site.ibid).await.unwrap(), site.only_effect().await.state),
        (0, Unknown)
    );

    assert_eq!(site.hear("evt_3", &at, never.clone()).await, EvidenceResult::Settled);
    let freed = site.only_effect().await;
    assert_eq!((freed.state, freed.called_at, freed.ended_at), (Queued, None, None));
    assert_eq!(freed.last_error.as_deref(), Some("a webhook said: not made"));
    assert!(freed.due_at.is_some(), "it is called again, after a pause");
    assert_eq!(
        site.hear("evt_3", &at, never).await,
        EvidenceResult::Duplicate,
        "it frees one try and no other"
    );
}

async fn an_executed_effect_is_not_called_by_a_waiting_try<D: Database + Clone + 'static>(site: Site<D>) {
    let psp = Psp::new([lost()]);
    site.pay("k", settled_at_once()).await;
    let worker = site.worker(&psp);
    worker.run_once().await.unwrap();
    let at = site.by_key().await;
    assert_eq!(site.hear("evt_1", &at, Observation::NotExecuted).await, EvidenceResult::Settled);
    assert_eq!(site.only_effect().await.state, Queued);
    // It was executed after all.
    assert_eq!(site.hear("evt_2", &at, executed_observation(201, "ch_1")).await, EvidenceResult::Settled);
    assert_eq!((site.only_effect().await.state, psp.calls()), (Done, 1));

    // The same if the evidence arrived while the call was in flight, and the call may be repeated.
    let psp = Psp::behind_a_gate([lost()]);
    site.pay("k2", charge().repeatable()).await;
    let worker = site.worker(&psp);
    let of = EffectFilter::default().with(|filter| filter.record = Some(ask(&site.ibid, "k2").id));
    let effect = Operator::new(&site.ibid).effects(of.clone()).await.unwrap().0.remove(0);
    let at = EffectRef::DownstreamKey(effect.downstream_key);
    let hear = async {
        psp.until_reached().await;
        assert_eq!(site.hear("evt_3", &at, executed_observation(201, "ch_2")).await, EvidenceResult::Early);
        psp.open();
    };
    let (round, ()) = tokio::join!(worker.run_once(), hear);
    round.unwrap();
    let effect = Operator::new(&site.ibid).effects(of).await.unwrap().0.remove(0);
    assert_eq!((effect.state, psp.calls()), (Done, 1));
}

async fn the_id_of_a_call_that_was_not_made_is_forgotten_with_it<D: Database + Clone + 'static>(
    site: Site<D>,
) {
    let psp = Psp::new([CallOutcome::Accepted { provider_id: "pi_1".into() }]);
    site.pay("k", settled_at_once()).await;
    let worker = site.worker(&psp);
    worker.run_once().await.unwrap();
    let by_id = EffectRef::ProviderId { kind: site.only_effect().await.kind, id: "pi_1".into() };
    assert_eq!(site.only_effect().await.provider_id.as_deref(), Some("pi_1"));
    assert_eq!(site.hear("evt_1", &by_id, Observation::NotExecuted).await, EvidenceResult::Settled);
    assert_eq!((site.only_effect().await.state, site.only_effect().await.provider_id), (Queued, None));
    // Later evidence about that call is about no call that may be in flight.
    assert_eq!(site.hear("evt_2", &by_id, Observation::NotExecuted).await, EvidenceResult::Premature);
    assert_eq!(site.only_effect().await.state, Queued);
}

/// The provider may still execute the call for a minute after it was sent.
#[tokio::test]
async fn not_executed_is_ignored_during_the_settle_pause() {
    let world = NodeOnSqlite::new().await;
    let provider = super::harness::Provider::new("w", |_| lost());
    let rules = EffectRules::default().with(|rules| rules.settle_ms = 60_000);
    world.pay("k", [charge().rules(rules)]).await;
    let worker = world.worker(&provider);
    worker.run_once().await.unwrap();
    let at = EffectRef::DownstreamKey(world.only_effect().await.downstream_key);
    let hear = async |event: &str, age| {
        world
            .ibid
            .report_evidence(evidence_report(event, &at, Observation::NotExecuted, Duration::from_secs(age)))
            .await
            .unwrap()
    };
    world.pass(59);
    assert_eq!(hear("evt_1", 0).await, EvidenceResult::Premature);
    world.pass(1);
    assert_eq!(hear("evt_2", 1).await, EvidenceResult::Premature);
    assert_eq!(hear("evt_3", 0).await, EvidenceResult::Settled);
    world.pass(60);
    worker.run_once().await.unwrap();
    assert_eq!((world.only_effect().await.state, provider.calls().len()), (Unknown, 2));
    // The evidence is from after the first try's end, and from before the second's.
    assert_eq!(hear("evt_4", 10).await, EvidenceResult::Premature);
    world.pass(3600);
    assert_eq!(hear("evt_5", 3600).await, EvidenceResult::Premature);
    assert_eq!(world.only_effect().await.state, Unknown);
    assert_eq!(hear("evt_6", 3540).await, EvidenceResult::Settled);
    assert_eq!(provider.calls().len(), 2);
}

async fn of_a_webhook_and_a_worker_that_asks_one_settles_it<D: Database + Clone + 'static>(site: Site<D>) {
    let other = site.another_process().await;
    let rules = NewEffect::new("", "", "").verified().rules.with(|rules| rules.settle_ms = 0);
    for round in 0..10 {
        let (psp, key) = (Psp::that_can_be_asked([lost()]), format!("k{round}"));
        let (worker, elsewhere) = (site.worker(&psp), other.worker(&psp));
        site.pay(&key, charge().rules(rules)).await;
        assert_eq!(worker.run_once().await.unwrap().again, 1);
        let of = EffectFilter::default().with(|filter| filter.record = Some(ask(&site.ibid, &key).id));
        let effect = Operator::new(&site.ibid).effects(of.clone()).await.unwrap().0.remove(0);
        let at = EffectRef::DownstreamKey(effect.downstream_key);
        let before = site.lines().await.len();
        let event = |n: u32| format!("evt_{round}_{n}");
        let (asked, asked_there, a, b, c) = tokio::join!(
            worker.run_once(),
            elsewhere.run_once(),
            site.ibid.report_evidence(evidence_report(
                &event(1),
                &at,
                executed_observation(201, "ch_1"),
                Duration::ZERO
            )),
            site.ibid.report_evidence(evidence_report(
                &event(2),
                &at,
                executed_observation(201, "ch_1"),
                Duration::ZERO
            )),
            other.ibid.report_evidence(evidence_report(
                &event(1),
                &at,
                executed_observation(201, "ch_1"),
                Duration::ZERO
            )),
        );
        let done = asked.unwrap().done + asked_there.unwrap().done;
        let heard = [a.unwrap(), b.unwrap(), c.unwrap()];
        let settled = heard.iter().filter(|hearing| **hearing == EvidenceResult::Settled).count();
        assert_eq!(done as usize + settled, 1, "one settles it: {done} and {heard:?}");
        let expected = [EvidenceResult::Settled, EvidenceResult::Known, EvidenceResult::Duplicate];
        assert!(heard.iter().all(|hearing| expected.contains(hearing)), "the others learn it: {heard:?}");
        assert_eq!(site.lines().await.len(), before + 1, "its rows are written once");
        assert_eq!(Operator::new(&site.ibid).effects(of).await.unwrap().0[0].state, Done);
        assert_eq!((psp.calls(), apply_evidence_once(&site.ibid).await.unwrap()), (1, 0));
    }
}

async fn a_worker_that_has_the_answer_is_not_disturbed<D: Database + Clone + 'static>(site: Site<D>) {
    let psp = Psp::behind_a_gate([]);
    site.pay("k", charge()).await;
    let worker = site.worker(&psp);
    let at = site.by_key().await;
    let hear = async {
        psp.until_reached().await;
        assert_eq!(site.hear("evt_1", &at, executed_observation(201, "ch_1")).await, EvidenceResult::Early);
        psp.open();
    };
    let (round, ()) = tokio::join!(worker.run_once(), hear);
    assert_eq!(round.unwrap(), WorkerRound::default().with(|round| round.done = 1));
    assert_eq!(site.lines().await, ["done: answer"], "its own result counts");
    assert_eq!(apply_evidence_once(&site.ibid).await.unwrap(), 0);
    assert!(
        site.ibid
            .store()
            .evidence()
            .unwrap()
            .open_evidence(EvidenceQuery::Of(at.id()), None, 10)
            .await
            .unwrap()
            .items
            .is_empty(),
        "it is of no more use"
    );
    assert!(site.history("k", HistoryKind::LateAnswer).await.is_empty(), "they say the same");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_returning_after_a_webhook_commits_no_rows() {
    let world = NodeOnSqlite::new().await;
    world.pay("k", [charge()]).await;
    let (gate, zombie) = world.silent_worker().await;
    world.pass(61);
    let bob = world.worker(&super::harness::Provider::new("bob", |_| super::harness::made_outcome()));
    assert_eq!(bob.run_once().await.unwrap().dead, 1);
    let at = EffectRef::DownstreamKey(world.only_effect().await.downstream_key);
    let report = evidence_report("evt_1", &at, executed_observation(201, "ch_1"), Duration::ZERO);
    assert_eq!(world.ibid.report_evidence(report).await.unwrap(), EvidenceResult::Settled);
    let settled = world.only_effect().await;
    gate.open();
    assert_eq!(zombie.await.unwrap(), WorkerRound::default().with(|round| round.lost = 1));
    assert_eq!(world.only_effect().await.version, settled.version);
    assert_eq!(
        world.ledger(),
        ["bob charge unknown: the worker that held it went silent", "bob charge done"]
    );
    assert_eq!(gate.provider.calls().len(), 1);
}

async fn upkeep_applies_evidence_that_a_crash_left_unused<D: Database + Clone + 'static>(site: Site<D>) {
    let psp = Psp::new([lost()]);
    site.owe("k", charge()).await;
    site.worker(&psp).run_once().await.unwrap();
    // As if the process had died between storing the evidence and applying it.
    let about = EvidenceSubject::Effect(site.by_key().await);
    let what = executed_observation(201, "ch_9");
    let evidence = Evidence { name: name("evt_1"), about, owner: None, what, age: Duration::ZERO };
    site.ibid.store().evidence().unwrap().insert_evidence(evidence, Duration::from_secs(3600)).await.unwrap();
    let after = site.another_process().await;
    let _worker = after.worker(&psp);
    assert_eq!(apply_evidence_once(&after.ibid).await.unwrap(), 1);
    assert_eq!((site.only_effect().await.state, site.record("k").await.state), (Done, State::Completed));
    assert_eq!(apply_evidence_once(&after.ibid).await.unwrap(), 0);
    assert_eq!(psp.calls(), 1);
}

async fn a_process_without_a_worker_keeps_it_for_one_that_has<D: Database + Clone + 'static>(site: Site<D>) {
    let (psp, front) = (Psp::new([lost()]), site.another_process().await);
    site.pay("k", charge()).await;
    let worker = site.worker(&psp);
    worker.run_once().await.unwrap();
    let at = site.by_key().await;
    assert_eq!(front.hear("evt_1", &at, executed_observation(201, "ch_9")).await, EvidenceResult::Early);
    assert_eq!(apply_evidence_once(&front.ibid).await.unwrap(), 0);
    assert_eq!(site.only_effect().await.state, Unknown, "no worker there could write its rows");
    assert_eq!(apply_evidence_once(&site.ibid).await.unwrap(), 1, "this process has a worker");
    assert_eq!(site.only_effect().await.state, Done);
    drop(worker);
    assert_eq!(front.hear("evt_2", &at, executed_observation(201, "ch_9")).await, EvidenceResult::Known);
}

async fn contradicting_evidence_changes_nothing<D: Database + Clone + 'static>(site: Site<D>) {
    let psp = Psp::new([]);
    site.pay("k", charge()).await;
    let worker = site.worker(&psp);
    worker.run_once().await.unwrap();
    let (at, done) = (site.by_key().await, site.only_effect().await);
    assert_eq!(site.hear("evt_1", &at, executed_observation(201, "ch_1")).await, EvidenceResult::Known);
    assert_eq!(site.hear("evt_2", &at, executed_observation(201, "ch_2")).await, EvidenceResult::Contradicts);
    assert_eq!(site.hear("evt_3", &at, Observation::NotExecuted).await, EvidenceResult::Contradicts);
    assert_eq!(site.hear("evt_3", &at, Observation::NotExecuted).await, EvidenceResult::Duplicate);
    assert_eq!(site.only_effect().await.version, done.version);
    let lines = [
        "webhook: effect `charge` executed as `ch_2`, although it is done (event `evt_2` of `psp`)",
        "webhook: effect `charge` not executed, although it is done (event `evt_3` of `psp`)",
    ];
    assert_eq!(site.history("k", HistoryKind::LateAnswer).await, lines);
    assert_eq!(site.lines().await, ["done: answer"]);
}

async fn an_id_that_two_effects_have_settles_neither<D: Database + Clone + 'static>(site: Site<D>) {
    let accepted = || CallOutcome::Accepted { provider_id: "ch_7".into() };
    let psp = Psp::new([accepted(), accepted()]);
    let worker = site.worker(&psp);
    for key in ["a", "b"] {
        site.pay(key, charge()).await;
        worker.run_once().await.unwrap();
    }
    let at = EffectRef::ProviderId { kind: "charge".into(), id: "ch_7".into() };
    assert_eq!(site.hear("evt_1", &at, executed_observation(201, "ch_7")).await, EvidenceResult::Contradicts);
    assert_eq!(apply_evidence_once(&site.ibid).await.unwrap(), 0);
    let effects = Operator::new(&site.ibid).effects(EffectFilter::default()).await.unwrap().0;
    assert!(effects.iter().all(|effect| effect.state == Unknown), "{effects:?}");
}

async fn others_of_its_aggregate_run_once_it_is_settled<D: Database + Clone + 'static>(site: Site<D>) {
    let psp = Psp::new([lost()]);
    let worker = site.worker(&psp);
    for key in ["a", "b"] {
        site.pay(key, charge().ordered_by("account 7")).await;
    }
    worker.run_once().await.unwrap();
    assert!(worker.run_once().await.unwrap().is_idle(), "the second waits");
    let effects = Operator::new(&site.ibid).effects(EffectFilter::default()).await.unwrap().0;
    let at = EffectRef::DownstreamKey(effects[0].downstream_key.clone());
    assert_eq!(site.hear("evt_1", &at, executed_observation(201, "ch_9")).await, EvidenceResult::Settled);
    assert_eq!(worker.run_once().await.unwrap().done, 1);
    // An effect that an operator discarded stays so, whatever evidence arrives.
    site.pay("c", charge()).await;
    let psp = Psp::new([lost()]);
    site.worker(&psp).run_once().await.unwrap();
    let last = Operator::new(&site.ibid).effects(EffectFilter::default()).await.unwrap().0.remove(2);
    Operator::new(&site.ibid).discard(last.seq, &because("refunded by hand")).await.unwrap();
    let at = EffectRef::DownstreamKey(last.downstream_key);
    assert_eq!(site.hear("evt_2", &at, executed_observation(201, "ch_9")).await, EvidenceResult::Contradicts);
    assert_eq!(
        Operator::new(&site.ibid).effects(EffectFilter::default()).await.unwrap().0[2].state,
        Discarded
    );
}

#[tokio::test]
async fn an_effect_is_found_by_its_indexes_on_sqlite() {
    let world = NodeOnSqlite::new().await;
    for (sql, index) in [
        (effects_sql!("find_by_key.sql"), "ibid_effect_call_key (downstream_key=?)"),
        (effects_sql!("find_by_provider.sql"), "ibid_effect_provider (provider_id=?)"),
    ] {
        let plan = world.plan(sql);
        assert!(plan.contains(index) && !plan.contains("SCAN x") && !plan.contains("SCAN c"), "{plan}");
    }
}
