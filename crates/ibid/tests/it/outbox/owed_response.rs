//! Effects that owe the record's response, and faults of a worker between the call and its end, on both databases: the
//! response is stored, or the record is `unknown`. A call that may not be repeated is not repeated.

use ibid::operator::Operator;
use ibid::outbox::{Worker, WorkerRound};
use ibid::outcome::{Begin, Outcome};
use ibid::transaction::Database;
use ibid_core::effect::{EffectRules, NewEffect, Safety};
use ibid_core::machine::EffectState::{Claimed, Done, Queued, Unknown};
use ibid_core::record::State;

use super::every_database::{Psp, Site, charge, on_every_database};
use super::harness::{ask, because};
use crate::lossy_database::{Lossy, Reply};

on_every_database!(
    an_owed_answer_outlives_a_worker_killed_in_its_call,
    an_owed_answer_outlives_a_worker_killed_before_recording,
    an_owed_answer_is_not_given_by_a_worker_that_comes_back_late,
    an_owed_answer_whose_commit_got_no_reply_is_given_once,
    an_unrecorded_owed_answer_needs_no_second_call,
    an_unrecorded_verified_answer_is_not_looked_up_again,
    a_retry_drops_the_kept_result_of_the_earlier_call,
);

async fn an_owed_answer_outlives_a_worker_killed_in_its_call<D: Database + Clone + 'static>(site: Site<D>) {
    for safety in SAFETIES {
        let psp = Psp::behind_a_gate([]);
        kill_worker(&site, effect_with(safety), &psp, 1).await;
        recovers(&site, safety, &psp).await;
    }
}

async fn an_owed_answer_outlives_a_worker_killed_before_recording<D: Database + Clone + 'static>(
    site: Site<D>,
) {
    for safety in SAFETIES {
        let psp = Psp::that_sticks();
        // Killed at the second stop: the first is the call, the second its rows.
        kill_worker(&site, effect_with(safety), &psp, 2).await;
        recovers(&site, safety, &psp).await;
    }
}

async fn an_owed_answer_is_not_given_by_a_worker_that_comes_back_late<D: Database + Clone + 'static>(
    site: Site<D>,
) {
    for safety in SAFETIES {
        let psp = Psp::behind_a_gate([]);
        site.owe(&key(safety), effect_with(safety)).await;
        let worker = site.worker(&psp);
        let zombie = tokio::spawn(async move { worker.run_once().await.unwrap() });
        psp.until_reached().await;
        recovers(&site, safety, &psp).await;
        let (effect, record) = (site.effect(&key(safety)).await, site.record(&key(safety)).await);
        let lines = site.lines().await;
        psp.open();
        assert_eq!(zombie.await.unwrap(), WorkerRound::default().with(|round| round.lost = 1), "{safety:?}");
        assert_eq!(site.effect(&key(safety)).await.version, effect.version, "{safety:?}");
        assert_eq!(site.record(&key(safety)).await.version, record.version, "{safety:?}");
        assert_eq!(site.lines().await, lines, "{safety:?}");
    }
}

async fn an_owed_answer_whose_commit_got_no_reply_is_given_once<D: Database + Clone + 'static>(
    site: Site<D>,
) {
    for safety in SAFETIES {
        for reply in [Reply::Lost, Reply::NeverSent] {
            let (psp, key) = (Psp::new([]), format!("{safety:?} {reply:?}"));
            site.owe(&key, effect_with(safety)).await;
            let before = site.lines().await.len();
            let database = Lossy::new(site.database.clone(), &[Reply::Comes, reply]);
            let worker = Worker::builder(site.ibid.clone(), database).on("charge", psp.clone());
            let round = worker.build().unwrap().run_once().await.unwrap();
            assert_eq!(round, WorkerRound::default().with(|round| round.done = 1), "{key}");
            assert_eq!(site.effect(&key).await.state, Done, "{key}");
            assert_eq!(answer(&site, &key).await, Ok("paid".to_owned()), "{key}");
            assert_eq!((psp.calls(), site.lines().await.len()), (1, before + 1), "{key}");
        }
    }
}

async fn an_unrecorded_owed_answer_needs_no_second_call<D: Database + Clone + 'static>(site: Site<D>) {
    let psp = Psp::new([]);
    psp.fails(u32::MAX);
    for safety in SAFETIES {
        site.owe(&key(safety), with_short_lease(effect_with(safety))).await;
    }
    assert_eq!(
        site.worker(&psp).run_once().await.unwrap(),
        WorkerRound::default().with(|round| round.lost = 3)
    );
    for safety in SAFETIES {
        let effect = site.effect(&key(safety)).await;
        assert_eq!((effect.state, effect.provider_id.as_deref()), (Claimed, Some("ch_1")), "{safety:?}");
        assert_eq!(site.record(&key(safety)).await.state, State::Pending, "{safety:?}");
    }
    // By another process, which has nothing of it in memory.
    psp.fails(0);
    site.lapse().await;
    let other = site.another_process().await;
    assert_eq!(
        other.worker(&psp).run_once().await.unwrap(),
        WorkerRound::default().with(|round| round.done = 3)
    );
    for safety in SAFETIES {
        let effect = site.effect(&key(safety)).await;
        assert_eq!((effect.state, effect.result.as_deref()), (Done, Some(&b"answer"[..])), "{safety:?}");
        assert_eq!(answer(&site, &key(safety)).await, Ok("paid".to_owned()), "{safety:?}");
    }
    assert_eq!((psp.calls(), site.lines().await), (3, vec!["done: answer".to_owned(); 3]));
}

async fn an_unrecorded_verified_answer_is_not_looked_up_again<D: Database + Clone + 'static>(site: Site<D>) {
    found_and_not_recorded(&site).await;
    let key = key(Safety::Verified);
    site.lapse().await;
    // This provider can't be looked up, so the result must come from the store.
    let psp = Psp::new([]);
    assert_eq!(
        site.worker(&psp).run_once().await.unwrap(),
        WorkerRound::default().with(|round| round.done = 1)
    );
    assert_eq!(answer(&site, &key).await, Ok("paid".to_owned()));
    assert_eq!(psp.calls(), 0);
}

async fn a_retry_drops_the_kept_result_of_the_earlier_call<D: Database + Clone + 'static>(site: Site<D>) {
    found_and_not_recorded(&site).await;
    let key = key(Safety::Verified);
    Operator::new(&site.ibid)
        .retry(site.effect(&key).await.seq, &because("it was taken back"))
        .await
        .unwrap();
    let effect = site.effect(&key).await;
    assert_eq!((effect.state, effect.result, effect.provider_id), (Queued, None, None));
    // The outcome of the next call is unknown.
    site.lapse().await;
    let psp = Psp::behind_a_gate([]);
    let worker = site.worker(&psp);
    let running = tokio::spawn(async move { worker.run_once().await });
    psp.until_reached().await;
    running.abort();
    site.lapse().await;
    assert_eq!(
        site.worker(&psp).run_once().await.unwrap(),
        WorkerRound::default().with(|round| round.again = 1)
    );
    assert_eq!((site.effect(&key).await.state, site.record(&key).await.state), (Unknown, State::Pending));
}

/// A worker is killed during its call; another finds that the call was made, and can't record it.
async fn found_and_not_recorded<D: Database + Clone + 'static>(site: &Site<D>) {
    kill_worker(site, with_short_lease(effect_with(Safety::Verified)), &Psp::behind_a_gate([]), 1).await;
    site.lapse().await;
    let psp = Psp::that_can_be_asked([]);
    let (worker, key) = (site.worker(&psp), key(Safety::Verified));
    assert_eq!(worker.run_once().await.unwrap().again, 1);
    site.lapse().await;
    psp.fails(u32::MAX);
    assert_eq!(worker.run_once().await.unwrap(), WorkerRound::default().with(|round| round.lost = 1));
    let effect = site.effect(&key).await;
    assert_eq!((effect.state, effect.provider_id.as_deref()), (Unknown, Some("ch_1")));
    assert_eq!(site.record(&key).await.state, State::Pending);
}

/// Starts a worker on a new record, and kills it once the provider was reached `places` times.
async fn kill_worker<D: Database + Clone + 'static>(
    site: &Site<D>,
    effect: NewEffect,
    psp: &Psp,
    places: u32,
) {
    site.owe(&key(effect.rules.safety), effect).await;
    let worker = site.worker(psp);
    let running = tokio::spawn(async move { worker.run_once().await });
    for _ in 0..places {
        psp.until_reached().await;
    }
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
}

/// The claim lapses, and another worker acts as the effect's safety declares.
async fn recovers<D: Database + Clone + 'static>(site: &Site<D>, safety: Safety, before: &Psp) {
    let key = key(safety);
    assert_eq!(site.effect(&key).await.state, Claimed, "{safety:?}");
    assert_eq!(site.record(&key).await.state, State::Pending, "{safety:?}");
    let other = site.another_process().await;
    let psp = Psp::that_can_be_asked([]);
    let worker = other.worker(&psp);
    let next = async || {
        site.lapse().await;
        worker.run_once().await.unwrap()
    };
    match safety {
        Safety::Once => {
            assert_eq!(next().await, WorkerRound::default().with(|round| round.dead = 1));
            assert!(next().await.is_idle(), "only an operator can settle it");
            let effect = site.effect(&key).await;
            assert_eq!((effect.state, effect.due_at), (Unknown, None));
            assert_eq!(answer(site, &key).await, Err(State::Unknown));
            assert_eq!((before.calls(), psp.calls()), (1, 0));
            return;
        }
        Safety::Repeatable => {
            assert_eq!(next().await, WorkerRound::default().with(|round| round.again = 1));
            assert_eq!(site.effect(&key).await.state, Queued);
            assert_eq!(site.record(&key).await.state, State::Pending);
            assert_eq!(next().await, WorkerRound::default().with(|round| round.done = 1));
            assert_eq!(psp.keys(), before.keys(), "called again under the same key, once");
        }
        _ => {
            assert_eq!(next().await, WorkerRound::default().with(|round| round.again = 1));
            assert_eq!(site.effect(&key).await.state, Unknown);
            assert_eq!(site.record(&key).await.state, State::Pending);
            assert_eq!(next().await, WorkerRound::default().with(|round| round.done = 1));
            assert_eq!((before.calls(), psp.calls()), (1, 0), "asked about, and not called again");
        }
    }
    assert_eq!(site.effect(&key).await.state, Done, "{safety:?}");
    assert_eq!(answer(site, &key).await, Ok("paid".to_owned()), "{safety:?}");
}

/// Returns the response that a client's retry gets, or the state of its record.
async fn answer<D: Database + Clone + 'static>(site: &Site<D>, key: &str) -> Result<String, State> {
    let state = site.record(key).await.state;
    match site.ibid.begin(ask(&site.ibid, key)).await.unwrap() {
        Begin::Skip(Outcome::Completed(kept)) => {
            assert_eq!((state, kept.response.status), (State::Completed, 201));
            Ok(String::from_utf8(kept.response.body.to_vec()).unwrap())
        }
        Begin::Skip(Outcome::Unknown { .. }) => {
            assert_eq!(state, State::Unknown);
            Err(state)
        }
        other => panic!("neither answered nor unknown: {other:?}"),
    }
}

fn effect_with(safety: Safety) -> NewEffect {
    charge().rules(EffectRules::default().with(|rules| rules.safety = safety))
}

/// Gives the effect a lease that a test can wait for, and that is long enough for a call on a busy machine.
fn with_short_lease(effect: NewEffect) -> NewEffect {
    let rules = effect.rules.with(|rules| rules.lease_ms = 3000);
    effect.rules(rules)
}

fn key(safety: Safety) -> String {
    format!("{safety:?}")
}

const SAFETIES: [Safety; 3] = [Safety::Once, Safety::Repeatable, Safety::Verified];
