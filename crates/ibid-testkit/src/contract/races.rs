//! Concurrent writers released by one barrier: one wins, and every other learns which one.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use ibid_core::change::{Change, Commit, Draft};
use ibid_core::reap::{ReapStep, ReapTarget};
use ibid_core::record::{Record, State};
use ibid_core::response::SavedResponse;
use ibid_core::store::{RenewOutcome, SetOutcome, Store};
use tokio::sync::Barrier;

use super::{
    LONG, SHORT, StoreUnderTest, TICK, TestRecord, answering, commit, commit_all, draft, insert, load, nonce,
    put, reap_all, take_over,
};

/// Many requests under one name give one attempt.
pub async fn of_many_inserts_one_wins(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let inserts = (0..subject.racers())
        .map(|_| answering(insert(&name, draft(&name, State::InProgress)), b"mine"))
        .collect();
    let winner = one_winner(race(&store, inserts).await);
    let stored = load(&*store, name.id).await.expect("one of them won");
    assert!(winner.is_stored_as(&stored), "the reported winner is not the stored one");
}

/// Races ten takeovers for each of some lapsed records.
pub async fn of_many_takeovers_one_wins_each_record(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let mut lapsed = Vec::new();
    for _ in 0..subject.racers() / RACERS_PER_RECORD {
        let name = TestRecord::fresh();
        let lapsing = Draft { due_in: Some(SHORT), ..draft(&name, State::InProgress) };
        let stored = put(&*store, &insert(&name, lapsing)).await;
        lapsed.push((name, stored.record));
    }
    subject.advance(TICK).await;
    let take = |(name, record): &(TestRecord, Arc<Record>)| {
        take_over(record, Draft { due_in: Some(LONG), ..draft(name, State::InProgress) })
    };
    let takers = lapsed.iter().cycle().take(subject.racers()).map(take).collect();
    let mut fates = race(&store, takers).await;
    for (name, _) in &lapsed {
        let (of_this, others) = fates.into_iter().partition(|(change, _)| change.id == name.id);
        fates = others;
        let winner = one_winner(of_this);
        let stored = load(&*store, name.id).await.expect("it exists");
        assert!(winner.is_stored_as(&stored), "the reported winner is not the stored one");
    }
}

/// An owner that returns at the last moment keeps its lease or loses it, and learns which.
pub async fn a_renewal_and_a_takeover_never_both_win(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let mut lapsed = Vec::new();
    for _ in 0..subject.racers() / RACERS_PER_RECORD {
        let name = TestRecord::fresh();
        let lapsing = Draft { due_in: Some(SHORT), ..draft(&name, State::InProgress) };
        let stored = put(&*store, &insert(&name, lapsing)).await;
        lapsed.push((name, stored.record));
    }
    subject.advance(TICK).await;
    let pairs = lapsed.into_iter().map(|(name, record)| {
        let store = store.clone();
        async move {
            let next = Draft { due_in: Some(LONG), ..draft(&name, State::InProgress) };
            let takeover = take_over(&record, next);
            let renewal = store.renew(vec![(record.id, record.version)]);
            let (taken, renewed) = tokio::join!(commit(&*store, &takeover), renewal);
            let taken = matches!(taken, Commit::Done(_));
            let renewed = matches!(renewed.expect("a renewal succeeds")[..], [RenewOutcome::Until(_)]);
            assert!(taken != renewed, "taken over: {taken}, renewed: {renewed}");
        }
    });
    run_together(pairs.collect()).await;
}

/// Two nodes that start at once agree on their secret.
pub async fn of_many_writers_of_a_value_all_get_the_same(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = format!("contract race {:016x}", nonce().0);
    let keepers = (0..subject.racers()).map(|index| {
        let (store, name) = (store.clone(), name.clone());
        async move { store.put_if_absent(&name, Bytes::from(index.to_string())).await.expect("it is kept") }
    });
    let values = run_together(keepers.collect()).await;
    assert!(values.iter().all(|value| *value == values[0]), "two writers got different values");
    let after = store.put_if_absent(&name, Bytes::from_static(b"late")).await.expect("it is kept");
    assert_eq!(after, values[0], "the returned value is the stored one");
}

/// Many writers have read the same value: one replaces it, and the others learn the new value.
pub async fn of_many_writers_of_a_setting_one_wins(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = format!("contract race {:016x}", nonce().0);
    store.put_if_absent(&name, Bytes::from_static(b"first")).await.expect("it is kept");
    let writers = (0..subject.racers()).map(|index| {
        let (store, name) = (store.clone(), name.clone());
        async move {
            let (first, mine) = (Some(Bytes::from_static(b"first")), Bytes::from(index.to_string()));
            let set = store.compare_and_set(&name, first, mine.clone()).await.expect("the store answers");
            (mine, set)
        }
    });
    let outcomes = run_together(writers.collect()).await;
    let stored = store.setting(&name).await.expect("the store answers").expect("it is set");
    for (mine, outcome) in outcomes {
        let expected = if mine == stored { SetOutcome::Won } else { SetOutcome::Lost(Some(stored.clone())) };
        assert_eq!(outcome, expected, "each writer learns which value is stored");
    }
}

/// Eight reapers on many records: the counts add up, in any order.
pub async fn many_reapers_take_each_record_once(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    reap_all(&*store, ReapTarget::Records).await;
    let going = (0..subject.racers()).map(|index| {
        let name = TestRecord::fresh();
        let term = if index % 2 == 0 { SHORT } else { LONG };
        let ending =
            Draft { expires_in: Some(SHORT), purge_in: Some(term), ..draft(&name, State::Completed) };
        answering(insert(&name, ending), b"going")
    });
    commit_all(&*store, going.collect()).await;
    subject.advance(TICK).await;
    let steps = subject.racers() / RECORDS_PER_STEP;
    let line = Arc::new(Barrier::new(REAPERS));
    let reapers: Vec<_> = (0..REAPERS)
        .map(|_| {
            let (store, line) = (store.clone(), line.clone());
            tokio::spawn(async move {
                line.wait().await;
                let mut all = ReapStep::default();
                for _ in 0..steps {
                    let step = store.reap(ReapTarget::Records, None, 7).await;
                    let step = step.expect("a reaping succeeds");
                    all.stripped += step.stripped;
                    all.removed += step.removed;
                }
                all
            })
        })
        .collect();
    // Rows that one reaper had locked while the others looked are left for the next round.
    let mut all = ReapStep::default();
    for reaper in reapers {
        let one = reaper.await.expect("a reaper ends");
        all.stripped += one.stripped;
        all.removed += one.removed;
    }
    let rest = reap_all(&*store, ReapTarget::Records).await;
    let half = subject.racers() as u64 / 2;
    assert_eq!((all.stripped + rest.stripped, all.removed + rest.removed), (half, half), "each once");
}

pub(super) async fn race(store: &Arc<dyn Store>, changes: Vec<Change>) -> Vec<(Change, Commit)> {
    let racers = changes.into_iter().map(|change| {
        let store = store.clone();
        async move {
            let fate = commit(&*store, &change).await;
            (change, fate)
        }
    });
    run_together(racers.collect()).await
}

/// Returns the one change that was accepted; every other must have received it as the conflict.
pub(super) fn one_winner(fates: Vec<(Change, Commit)>) -> Change {
    let (won, lost): (Vec<_>, Vec<_>) =
        fates.into_iter().partition(|(_, fate)| matches!(fate, Commit::Done(_)));
    assert_eq!(won.len(), 1, "exactly one of a race wins");
    let winner = won.into_iter().next().map(|(change, _)| change).expect("one was counted");
    for (loser, fate) in lost {
        let Commit::Conflict(Some(stored)) = fate else { panic!("a loser got no record: {fate:?}") };
        assert!(winner.is_stored_as(&stored), "a loser got another record than the winner's");
        assert!(!loser.is_stored_as(&stored), "a loser took the winner for itself");
        let response = winner.response.clone().map(SavedResponse::Plain);
        assert_eq!(stored.response, response, "a loser got another response than the winner's");
    }
    winner
}

/// Runs all of them from one barrier.
pub(super) async fn run_together<F>(futures: Vec<F>) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let line = Arc::new(Barrier::new(futures.len()));
    let start = |future: F| {
        let line = line.clone();
        tokio::spawn(async move {
            line.wait().await;
            future.await
        })
    };
    let running: Vec<_> = futures.into_iter().map(start).collect();
    let mut ends = Vec::with_capacity(running.len());
    for task in running {
        ends.push(task.await.expect("a racer panicked"));
    }
    ends
}

/// Number of racers for each record, where several are raced for.
pub(super) const RACERS_PER_RECORD: usize = 10;

/// Number of concurrent reapers.
const REAPERS: usize = 8;

/// Records for each step of a reaper: two reapers alone would be enough for all of them.
const RECORDS_PER_STEP: usize = 10;
