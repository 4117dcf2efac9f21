//! The path of almost every record: its first request begins it, and that attempt finishes it. A store may have a shorter
//! path for this, and must still notice whatever else happens to the record meanwhile.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::{Change, Commit, Draft, HistoryKind};
use ibid_core::policy::Policy;
use ibid_core::reap::{ReapCount, ReapTarget};
use ibid_core::record::{Record, State};
use ibid_core::response::SavedResponse;
use ibid_core::scope::RecordId;
use ibid_core::store::Store;

use super::races::{RACERS_PER_RECORD, one_winner, race, run_together};
use super::upkeep::renew_lease;
use super::{
    LONG, SHORT, StoreUnderTest, TICK, TestRecord, answering, commit, commit_all, draft, due,
    expect_conflict, finish_with, fresh, fresh_under, history, insert, load, load_all, put, reap_all,
    replace, take_over, telling,
};

/// Writes one by one, and many in a batch.
pub async fn a_fresh_record_and_its_finish_read_back_as_they_were_written(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    // `put` compares what is loaded with `Change::apply`.
    let running = put(&*store, &fresh(&name, LONG)).await;
    assert_eq!((running.record.state, running.response), (State::InProgress, None));
    let stored = put(&*store, &finish_with(&running.record, b"201 created")).await;
    assert_eq!(stored.body(), Some(&b"201 created"[..]), "with its answer");
    assert_eq!(stored.record.due_at, None, "and never due again");

    let begins: Vec<Change> =
        (0..subject.racers() / RACERS_PER_RECORD).map(|_| fresh(&TestRecord::fresh(), LONG)).collect();
    let running = done(&*store, begins).await;
    let finishes = running.iter().map(|record| finish_with(record, b"together")).collect();
    for record in done(&*store, finishes).await {
        let stored = load(&*store, record.id).await.expect("it exists");
        assert_eq!(stored.body(), Some(&b"together"[..]));
    }
}

/// Many requests under one name give one attempt.
pub async fn of_many_fresh_begins_one_wins(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let winner = one_winner(race(&store, (0..subject.racers()).map(|_| fresh(&name, LONG)).collect()).await);
    let stored = load(&*store, name.id).await.expect("one of them won");
    assert!(winner.is_stored_as(&stored), "the reported winner is not the stored one");
}

/// Races ten responses for each of some records.
pub async fn of_many_finishes_one_wins_each_record(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let records = done(
        &*store,
        (0..subject.racers() / RACERS_PER_RECORD).map(|_| fresh(&TestRecord::fresh(), LONG)).collect(),
    )
    .await;
    let finishes =
        records.iter().cycle().take(subject.racers()).map(|record| finish_with(record, b"mine")).collect();
    let mut fates = race(&store, finishes).await;
    for record in &records {
        let (of_this, others) = fates.into_iter().partition(|(change, _)| change.id == record.id);
        fates = others;
        let winner = one_winner(of_this);
        let stored = load(&*store, record.id).await.expect("it exists");
        assert!(winner.is_stored_as(&stored), "the reported winner is not the stored one");
    }
}

/// An owner that returns after its lease either finishes or has lost the record, and learns which.
pub async fn of_a_finish_and_a_takeover_after_the_lease_one_wins(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let records = done(
        &*store,
        (0..subject.racers() / RACERS_PER_RECORD).map(|_| fresh(&TestRecord::fresh(), SHORT)).collect(),
    )
    .await;
    subject.advance(TICK).await;
    let pairs = records.into_iter().map(|record| {
        let store = store.clone();
        async move {
            let (finish, takeover) = (finish_with(&record, b"late"), take_over(&record, running(&record)));
            let (ended, taken) = tokio::join!(commit(&*store, &finish), commit(&*store, &takeover));
            let stored = load(&*store, record.id).await.expect("it exists");
            match (ended, taken) {
                (Commit::Done(_), Commit::Conflict(_)) => assert!(finish.is_stored_as(&stored)),
                (Commit::Conflict(Some(newer)), Commit::Done(_)) => {
                    assert!(takeover.is_stored_as(&stored));
                    assert_eq!(
                        (newer.record, stored.response),
                        (stored.record, None),
                        "the conflict names the new owner"
                    );
                }
                fates => panic!("of two exactly one wins: {fates:?}"),
            }
        }
    });
    run_together(pairs.collect()).await;
}

/// A change whose reply was lost finds its own commit.
pub async fn a_repeated_fresh_begin_and_a_repeated_finish_find_themselves(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let begin = fresh(&TestRecord::fresh(), LONG);
    let running = put(&*store, &begin).await;
    let own = expect_conflict(&*store, &begin, "it was stored already").await.expect("a row exists");
    assert!(begin.is_stored_as(&own), "a repeated begin finds its own version");
    let finish = finish_with(&running.record, b"once");
    put(&*store, &finish).await;
    for _ in 0..2 {
        let own = expect_conflict(&*store, &finish, "it was stored already").await.expect("a row exists");
        assert!(finish.is_stored_as(&own), "a repeated finish finds its own version");
        assert_eq!(own.body(), Some(&b"once"[..]), "and the answer it wrote");
    }
    let own = expect_conflict(&*store, &begin, "it was stored already").await.expect("a row exists");
    assert!(finish.is_stored_as(&own), "a begin that comes very late finds the finish");
}

/// A renewal leaves the version alone, so it must not get in the way of the finish.
pub async fn a_finish_counts_after_renewals(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    for times in [1, 3] {
        let running = put(&*store, &fresh(&TestRecord::fresh(), LONG)).await;
        for _ in 0..times {
            renew_lease(&*store, &running.record).await;
        }
        let stored = put(&*store, &finish_with(&running.record, b"after all")).await;
        assert_eq!(stored.body(), Some(&b"after all"[..]));
    }
}

/// The former owner can't finish a record that was taken over.
pub async fn a_finish_after_a_takeover_is_refused(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let first = put(&*store, &fresh(&TestRecord::fresh(), SHORT)).await.record;
    subject.advance(TICK).await;
    let taken = put(&*store, &take_over(&first, running(&first))).await.record;
    let late = finish_with(&first, b"late");
    let stands = expect_conflict(&*store, &late, "the lease was taken over").await.expect("a row exists");
    assert_eq!((&stands.record, &stands.response), (&taken, &None), "the late answer left no trace");
    put(&*store, &finish_with(&taken, b"in time")).await;
    let stands = expect_conflict(&*store, &late, "another has finished it").await.expect("a row exists");
    assert_eq!(stands.body(), Some(&b"in time"[..]));
}

/// Holds also if the location of the removed row was reused for another.
pub async fn a_finish_after_a_removal_is_refused(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let names: Vec<TestRecord> =
        (0..subject.racers() / RACERS_PER_RECORD).map(|_| TestRecord::fresh()).collect();
    let records = done(&*store, names.iter().map(|name| fresh(name, SHORT)).collect()).await;
    subject.advance(TICK).await;
    let gone = |record: &Record| {
        let term = Some(Duration::ZERO);
        let over = Draft { expires_in: term, purge_in: term, ..draft(&name_of(record), State::Completed) };
        take_over(record, over)
    };
    done(&*store, records.iter().map(gone).collect()).await;
    subject.advance(TICK).await;
    reap_all(&*store, ReapTarget::Records).await;
    let (first, second) = records.split_at(records.len() / 2);
    for record in first {
        assert_eq!(expect_conflict(&*store, &finish_with(record, b"late"), "its record is gone").await, None);
    }
    let again: Vec<Change> = names.iter().map(|name| fresh(name, LONG)).collect();
    done(&*store, again.clone()).await;
    for record in second {
        let late = finish_with(record, b"late");
        let stands = expect_conflict(&*store, &late, "its generation is gone").await.expect("a row exists");
        assert!(again.iter().any(|begin| begin.is_stored_as(&stands)), "the new generation");
        assert_eq!(stands.response, None, "the late answer left no trace");
    }
}

/// A record has one position in one list, however it became due.
pub async fn a_fresh_record_is_due_once_when_its_lease_is_over(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let ms = Duration::from_millis;
    let names: Vec<TestRecord> = (0..7).map(|_| TestRecord::fresh()).collect();
    let other = |name: &TestRecord, due_in| insert(name, Draft { due_in, ..draft(name, State::InProgress) });
    // Each lapses later than the one before it, because each begins later.
    let first = put(&*store, &fresh(&names[0], ms(1))).await.record;
    put(&*store, &other(&names[1], Some(ms(2)))).await;
    put(&*store, &fresh(&names[2], ms(3))).await;
    put(&*store, &answering(other(&names[3], Some(ms(4))), b"inline")).await;
    put(&*store, &fresh(&names[4], ms(5))).await;
    put(&*store, &fresh(&names[5], LONG)).await;
    put(&*store, &other(&names[6], None)).await;
    subject.advance(TICK).await;
    let lapsed: Vec<RecordId> = names[..5].iter().map(|name| name.id).collect();
    for time in 1..=3 {
        assert_eq!(due_of(&*store, &names).await, lapsed, "longest due first, time {time}");
    }
    let all = due(&*store, State::InProgress, 10_000).await;
    let due = all.into_iter().find(|stored| stored.record.id == first.id).expect("it is due");
    assert_eq!(due.record, first, "being found changes nothing");
    put(&*store, &finish_with(&first, b"late, but in time")).await;
    assert_eq!(due_of(&*store, &names).await, lapsed[1..], "what is finished is not due");
    for stored in load_all(&*store, lapsed[1..].to_vec()).await {
        put(&*store, &finish_with(&stored.record, b"done")).await;
    }
    assert_eq!(due_of(&*store, &names).await, []);
}

/// Records are finished, renewed and taken over, before the first `due` query and after it.
pub async fn a_fresh_record_is_not_due_after_a_later_write(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    for was_seen in [false, true] {
        let names: Vec<TestRecord> = (0..4).map(|_| TestRecord::fresh()).collect();
        // A renewal sets the policy's lease again, so the lease must be long enough not to lapse at once.
        let records = done(&*store, names.iter().map(|name| fresh(name, RENEWABLE)).collect()).await;
        subject.advance(RENEWABLE).await;
        let of =
            |name: &TestRecord| records.iter().find(|record| record.id == name.id).expect("it was begun");
        if was_seen {
            assert_eq!(due_of(&*store, &names).await.len(), names.len(), "all of them lapsed");
        }
        put(&*store, &finish_with(of(&names[0]), b"late")).await;
        put(&*store, &take_over(of(&names[1]), running(of(&names[1])))).await;
        let unknown = Draft { due_in: Some(LONG), ..draft(&names[2], State::Unknown) };
        put(&*store, &take_over(of(&names[2]), unknown)).await;
        let until = renew_lease(&*store, of(&names[3])).await;
        let due = due_of(&*store, &names).await;
        let now = load(&*store, names[3].id).await.expect("it exists").now;
        // On a machine so slow that the renewed lease has lapsed as well, the record is due again.
        let may_be = if now >= until { vec![names[3].id] } else { vec![] };
        assert!(due.is_empty() || due == may_be, "{due:?} (was seen: {was_seen})");
        put(&*store, &finish_with(of(&names[3]), b"after all")).await;
        assert_eq!(due_of(&*store, &names).await, [], "(was seen: {was_seen})");
    }
}

/// Stripped when replay ends, removed when its tombstone does; the dry run predicts both.
pub async fn a_finished_record_goes_in_its_turn(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    reap_all(&*store, ReapTarget::Records).await;
    let policy = |retention, tombstone| {
        Arc::new(Policy::default().with(|policy| {
            policy.lease = LONG;
            policy.retention = retention;
            policy.tombstone = tombstone;
        }))
    };
    let (short, tomb, long) =
        (policy(SHORT, Duration::ZERO), policy(SHORT, LONG), policy(LONG, Duration::ZERO));
    let mut begins = Vec::new();
    for (policy, count) in [(&short, 5), (&tomb, 3), (&long, 2)] {
        begins.extend((0..count).map(|_| fresh_under(&TestRecord::fresh(), policy)));
    }
    // It runs for longer than its response would be kept.
    let running = fresh_under(&TestRecord::fresh(), &short);
    begins.push(running.clone());
    let records = done(&*store, begins).await;
    // A store that can't be browsed has no preview to compare with.
    let assert_ripe = async |expected: ReapCount| {
        if let Some(browse) = store.browse() {
            let ripe = browse.count_reapable(ReapTarget::Records).await.expect("it is counted");
            assert_eq!(ripe, expected);
        }
    };
    subject.advance(TICK).await;
    assert_ripe(ReapCount::default()).await;
    let reaped = reap_all(&*store, ReapTarget::Records).await;
    assert_eq!((reaped.stripped, reaped.removed), (0, 0), "retention counts from completion");
    let (rest, ending): (Vec<Record>, Vec<Record>) =
        records.into_iter().partition(|record| record.id == running.id);
    done(&*store, ending.iter().map(|record| finish_with(record, b"going")).collect()).await;
    subject.advance(TICK).await;
    assert_ripe(ReapCount { strip: 3, remove: 5 }).await;
    let reaped = reap_all(&*store, ReapTarget::Records).await;
    assert_eq!((reaped.stripped, reaped.removed), (3, 5));
    assert_ripe(ReapCount::default()).await;
    for record in ending {
        let stored = load(&*store, record.id).await;
        let left = stored.map(|stored| (stored.record.identity.is_forgotten(), stored.response.is_some()));
        let expected = match record.policy.retention {
            LONG => Some((false, true)),
            _ => Some((true, false)).filter(|_| record.policy.tombstone == LONG),
        };
        assert_eq!(left, expected, "kept for {:?}", record.policy.retention);
    }
    put(&*store, &finish_with(&rest[0], b"at last")).await;
    subject.advance(TICK).await;
    assert_ripe(ReapCount { strip: 0, remove: 1 }).await;
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.removed, 1, "and what ran for long goes too");
}

/// Commits begins, finishes, takeovers and others in one batch; about half of them are refused.
pub async fn each_of_a_mixed_batch_has_its_own_fate(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let lapsed = done(&*store, (0..60).map(|_| fresh(&TestRecord::fresh(), SHORT)).collect()).await;
    let live = done(&*store, (0..20).map(|_| fresh(&TestRecord::fresh(), LONG)).collect()).await;
    subject.advance(TICK).await;
    let mut parts = lapsed.chunks(10);
    let mut next = || parts.next().expect("six parts").iter();
    let (mut fitting, mut refused) = (Vec::new(), Vec::new());
    fitting.extend((0..10).map(|_| fresh(&TestRecord::fresh(), LONG)));
    refused.extend(next().map(|record| fresh(&name_of(record), LONG)));
    fitting.extend(next().map(|record| finish_with(record, b"mine")));
    let mut before: Vec<Change> = next().map(|record| finish_with(record, b"first")).collect();
    before.extend(next().map(|record| take_over(record, running(record))));
    refused.extend(lapsed[20..40].iter().map(|record| finish_with(record, b"too late")));
    fitting.extend(next().map(|record| take_over(record, running(record))));
    refused.extend(live[..10].iter().map(|record| take_over(record, running(record))));
    let into_unknown = |record: &Record| {
        telling(replace(record, draft(&name_of(record), State::Unknown)), HistoryKind::Unknown, "told")
    };
    fitting.extend(next().map(into_unknown));
    fitting.extend(live[10..].iter().map(|record| finish_with(record, b"mine")));
    done(&*store, before).await;
    let fitting_ids: Vec<RecordId> = fitting.iter().map(|change| change.id).collect();
    let all: Vec<Change> = fitting.into_iter().chain(refused).collect();
    let fates = commit_all(&*store, all.clone()).await;
    for change in all {
        let stored = load(&*store, change.id).await.expect("it exists");
        let lines = history(&*store, change.id).await.len();
        if fitting_ids.contains(&change.id) {
            assert!(matches!(fates[&change.id], Commit::Done(_)), "refused: {change:?}");
            assert!(change.is_stored_as(&stored), "what was reported is stored");
            let expected = if store.browse().is_some() { change.history.len() } else { 0 };
            assert_eq!(lines, expected, "its history is written once");
            assert_eq!(stored.response, change.response.clone().map(SavedResponse::Plain));
        } else {
            let Commit::Conflict(Some(newer)) = &fates[&change.id] else { panic!("taken: {change:?}") };
            assert!(!change.is_stored_as(&stored), "what was refused is not stored");
            assert_eq!(
                (&newer.record, &newer.response),
                (&stored.record, &stored.response),
                "the conflict has the stored record"
            );
        }
    }
}

/// Writes changes that must be accepted, and returns the stored records in the order of ids.
async fn done(store: &dyn Store, changes: Vec<Change>) -> Vec<Record> {
    let fates = commit_all(store, changes).await;
    let mut ids: Vec<RecordId> = fates.keys().copied().collect();
    ids.sort_unstable();
    assert!(fates.values().all(|fate| matches!(fate, Commit::Done(_))), "one was refused: {fates:?}");
    load_all(store, ids).await.into_iter().map(|stored| Arc::unwrap_or_clone(stored.record)).collect()
}

/// Returns which of these are due, in the store's order. Other records may be in this store.
async fn due_of(store: &dyn Store, names: &[TestRecord]) -> Vec<RecordId> {
    let ids = due(store, State::InProgress, 10_000).await.into_iter().map(|stored| stored.record.id);
    ids.filter(|id| names.iter().any(|name| name.id == *id)).collect()
}

/// A draft for another run of the record.
fn running(record: &Record) -> Draft {
    Draft { due_in: Some(LONG), ..draft(&name_of(record), State::InProgress) }
}

fn name_of(record: &Record) -> TestRecord {
    TestRecord { id: record.id, identity: record.identity.clone() }
}

/// A lease that the suite waits for. It lapses a second time only on a machine that stalls.
const RENEWABLE: Duration = Duration::from_millis(40);
