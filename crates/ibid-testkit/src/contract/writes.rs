//! Single changes, one after another: which are accepted, which are refused, and what is stored afterwards.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{BodyKind, Commit, Draft, Expect, HistoryKind, InstantChange, StoredBody};
use ibid_core::fingerprint::Fingerprint;
use ibid_core::policy::{Policy, Question, Reconcile};
use ibid_core::reap::ReapTarget;
use ibid_core::record::{ErrorCode, Flags, Nonce, RecordDetails, State, Version};
use ibid_core::scope::{Identity, Operation};

use super::{
    LONG, SHORT, StoreUnderTest, TICK, TestRecord, answering, commit, commit_all, draft, expect_conflict,
    history, insert, load, load_all, nonce, put, reap_all, replace, response, take_over, telling,
};

/// `Expect::Absent` is accepted if no row exists, and only then.
pub async fn an_insert_wins_only_if_no_row_exists(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    assert_eq!(load(&*store, name.id).await, None, "a fresh name stands for nothing");
    let first = put(&*store, &insert(&name, draft(&name, State::InProgress))).await;
    let second = insert(&name, draft(&name, State::InProgress));
    let winner =
        expect_conflict(&*store, &second, "a row exists").await.expect("the conflict has the winner");
    assert_eq!(winner.record, first.record, "the winner is the one that stands");
    assert!(!second.is_stored_as(&winner), "another's insert is not taken for one's own");
}

/// Count and nonce must both match the stored version.
pub async fn a_write_at_another_version_is_refused(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let absent = replace(
        &put(&*store, &insert(&TestRecord::fresh(), draft(&name, State::InProgress))).await.record,
        draft(&name, State::Completed),
    );
    let nowhere = ibid_core::change::Change { id: name.id, ..absent };
    assert_eq!(expect_conflict(&*store, &nowhere, "no row stands").await, None, "no row, nothing to tell");
    let stored = put(&*store, &insert(&name, draft(&name, State::InProgress))).await;
    let Version { count, nonce } = stored.record.version;
    let others = [
        Version { count: count + 1, nonce },
        Version { count: count - 1, nonce },
        Version { count, nonce: Nonce(nonce.0 ^ 1) },
        Version { count, nonce: Nonce(nonce.0 ^ (1 << 63)) },
    ];
    for version in others {
        for expect in [Expect::Version(version), Expect::Due(version)] {
            let mut change = replace(&stored.record, draft(&name, State::Completed));
            change.expect = expect;
            expect_conflict(&*store, &change, "it expected another version").await;
        }
    }
    let after = load(&*store, name.id).await.expect("it still stands");
    assert_eq!(after.record, stored.record, "refused writes leave no trace");
    put(&*store, &replace(&stored.record, draft(&name, State::Completed))).await;
    let again = replace(&stored.record, draft(&name, State::Completed));
    expect_conflict(&*store, &again, "its version was overwritten").await;
}

/// The loser of a race needs no second round trip to answer its client.
pub async fn a_lost_race_carries_the_newer_record_with_its_answer(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let first = put(&*store, &insert(&name, draft(&name, State::InProgress))).await;
    let finish = answering(replace(&first.record, draft(&name, State::Completed)), b"201 created");
    let finished = put(&*store, &finish).await;
    assert_eq!(finished.body(), Some(&b"201 created"[..]), "the answer is loaded with its record");
    let late = answering(replace(&first.record, draft(&name, State::Completed)), b"too late");
    for loser in [late, insert(&name, draft(&name, State::InProgress))] {
        let newer = expect_conflict(&*store, &loser, "the record had changed").await.expect("a row exists");
        assert_eq!(newer.record, finished.record, "a lost race carries the record that won");
        assert_eq!(newer.response, finished.response, "a lost race carries the answer that won");
        assert!(newer.now >= finished.now, "the conflict has the store's time");
    }
}

/// A takeover that read a lapsed lease is refused if the lease was renewed since.
pub async fn a_takeover_is_judged_inside_the_write(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let lapsing = |name: &TestRecord| Draft { due_in: Some(SHORT), ..draft(name, State::InProgress) };
    let running = |name: &TestRecord| Draft { due_in: Some(LONG), ..draft(name, State::InProgress) };

    let name = TestRecord::fresh();
    let first = put(&*store, &insert(&name, draft(&name, State::InProgress))).await;
    let takeover = take_over(&first.record, running(&name));
    expect_conflict(&*store, &takeover, "the record is never due").await;

    let name = TestRecord::fresh();
    let live = put(&*store, &insert(&name, running(&name))).await;
    expect_conflict(&*store, &take_over(&live.record, running(&name)), "the lease was live").await;

    let name = TestRecord::fresh();
    put(&*store, &insert(&name, lapsing(&name))).await;
    subject.advance(TICK).await;
    let lapsed = load(&*store, name.id).await.expect("it exists");
    assert!(lapsed.record.is_due(lapsed.now), "the clock moved past the lease");
    store.renew(vec![(name.id, lapsed.record.version)]).await.expect("a renewal succeeds");
    expect_conflict(&*store, &take_over(&lapsed.record, running(&name)), "the lease was renewed since").await;

    let name = TestRecord::fresh();
    let lapsing_record = put(&*store, &insert(&name, lapsing(&name))).await;
    subject.advance(TICK).await;
    let taken = put(&*store, &take_over(&lapsing_record.record, running(&name))).await;
    let late = replace(&lapsing_record.record, draft(&name, State::Completed));
    let holder = expect_conflict(&*store, &late, "the lease was taken over").await.expect("a row exists");
    assert_eq!(holder.record.owner, taken.record.owner, "the silent holder learns who took over");
}

/// After a lost reply the caller sends the same change again, and it finds itself stored.
pub async fn a_repeated_write_is_recognised_by_its_own_nonce(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let begin = insert(&name, draft(&name, State::InProgress));
    let first = put(&*store, &begin).await;
    let own = expect_conflict(&*store, &begin, "it was stored already").await.expect("a row exists");
    assert!(begin.is_stored_as(&own), "a repeated insert finds its own version");
    let finish = answering(replace(&first.record, draft(&name, State::Completed)), b"once");
    let finish = telling(finish, HistoryKind::Settled, "once");
    put(&*store, &finish).await;
    let own = expect_conflict(&*store, &finish, "it was stored already").await.expect("a row exists");
    assert!(finish.is_stored_as(&own), "a repeated update finds its own version");
    assert_eq!(own.body(), Some(&b"once"[..]), "and the answer it wrote");
    let lines = history(&*store, name.id).await.len();
    assert!(lines == 1 || store.browse().is_none(), "the repetition wrote no second line");
}

/// The nonce distinguishes generations even if the count starts again.
pub async fn a_version_never_repeats_after_removal(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let going = Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) };
    let old = put(&*store, &answering(insert(&name, going), b"old")).await;
    subject.advance(TICK).await;
    reap_all(&*store, ReapTarget::Records).await;
    assert_eq!(load(&*store, name.id).await, None, "what is past its time is removed");
    let new = put(&*store, &insert(&name, draft(&name, State::InProgress))).await;
    assert_eq!(new.response, None, "the removed record's answer went with it");
    assert_ne!(new.record.version, old.record.version, "versions never repeat");
    let late = replace(&old.record, draft(&name, State::Completed));
    let stands = expect_conflict(&*store, &late, "its generation was removed").await.expect("a row exists");
    assert_eq!(stands.record, new.record, "the new generation is untouched");
}

/// Some changes are accepted, some refused, one is large: each as if it were alone.
pub async fn one_changes_fate_never_touches_anothers(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let taken: Vec<TestRecord> = (0..4).map(|_| TestRecord::fresh()).collect();
    let free: Vec<TestRecord> = (0..4).map(|_| TestRecord::fresh()).collect();
    for name in &taken {
        put(&*store, &insert(name, draft(name, State::InProgress))).await;
    }
    let large = Bytes::from(vec![0xa5; 1 << 20]);
    let mut batch: Vec<_> = taken
        .iter()
        .chain(&free)
        .map(|name| answering(insert(name, draft(name, State::Completed)), b"small"))
        .collect();
    batch[4].response = Some(response(large.clone()));
    let fates = commit_all(&*store, batch).await;
    for name in &taken {
        let Commit::Conflict(Some(stored)) = &fates[&name.id] else { panic!("a taken name was taken again") };
        assert_eq!(stored.record.state, State::InProgress, "the refusal has the earlier record");
        let after = load(&*store, name.id).await.expect("it exists");
        assert_eq!((after.record.state, after.response), (State::InProgress, None), "a refused change wrote");
    }
    for (index, name) in free.iter().enumerate() {
        assert!(
            matches!(fates[&name.id], Commit::Done(_)),
            "a free name was refused together with a taken one"
        );
        let stored = load(&*store, name.id).await.expect("it was written");
        assert_eq!(stored.body(), Some(if index == 0 { &large[..] } else { &b"small"[..] }));
    }
}

/// A change is applied completely or not at all.
pub async fn a_refused_change_leaves_no_body_and_no_history(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let first = put(&*store, &answering(insert(&name, draft(&name, State::InProgress)), b"kept")).await;
    let mut stale = replace(&first.record, draft(&name, State::Completed));
    stale.expect = Expect::Version(Version { count: 1, nonce: nonce() });
    stale.clears_bodies = true;
    let late = telling(answering(stale, b"late"), HistoryKind::LateAnswer, "late");
    let again = telling(
        answering(insert(&name, draft(&name, State::InProgress)), b"again"),
        HistoryKind::Takeover,
        "again",
    );
    for change in [late, again] {
        expect_conflict(&*store, &change, "something else was stored").await;
    }
    let after = load(&*store, name.id).await.expect("it exists");
    assert_eq!((after.record, after.response), (first.record, first.response), "a refused change wrote");
    assert_eq!(history(&*store, name.id).await, vec![], "a refused change told");
}

/// The next generation under the same id never replays the response of the one before.
pub async fn a_body_of_an_old_generation_is_never_seen_by_a_new_one(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    for clears_bodies in [true, false] {
        let name = TestRecord::fresh();
        let old = put(&*store, &answering(insert(&name, draft(&name, State::Completed)), b"old")).await;
        let mut rebirth = replace(&old.record, draft(&name, State::InProgress));
        rebirth.clears_bodies = clears_bodies;
        rebirth.draft =
            rebirth.draft.map(|draft| Draft { birth: rebirth.nonce, owner: rebirth.nonce, ..draft });
        let new = put(&*store, &rebirth).await;
        assert_eq!(new.response, None, "a new generation saw an old answer (clears_bodies: {clears_bodies})");
        let finish = answering(replace(&new.record, draft(&name, State::Completed)), b"new");
        assert_eq!(put(&*store, &finish).await.body(), Some(&b"new"[..]), "it keeps its own");
    }
}

/// Within a generation a response stays until it is replaced or cleared.
pub async fn an_answer_replaces_the_one_before_it(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let completed = || {
        let note = RecordDetails { status: Some(201), ..RecordDetails::default() };
        Draft { note, ..draft(&name, State::Completed) }
    };
    let mut first = answering(insert(&name, completed()), b"first");
    if store.bodies().is_some() {
        first.bodies.push(StoredBody { kind: BodyKind::Request, data: Bytes::from_static(b"request") });
        first.bodies.push(StoredBody { kind: BodyKind::Phase(u16::MAX), data: Bytes::from_static(b"phase") });
    }
    let first = put(&*store, &first).await;
    let untouched = put(&*store, &replace(&first.record, completed())).await;
    assert_eq!(untouched.body(), Some(&b"first"[..]), "a change without a body keeps the answer");
    let second = put(&*store, &answering(replace(&untouched.record, completed()), b"second")).await;
    assert_eq!(second.body(), Some(&b"second"[..]), "an answer is replaced");
    let empty = put(&*store, &answering(replace(&second.record, completed()), b"")).await;
    assert_eq!(empty.body(), Some(&b""[..]), "an empty answer is an answer");
    let mut clearing = replace(&empty.record, completed());
    clearing.clears_bodies = true;
    assert_eq!(put(&*store, &clearing).await.response, None, "a cleared answer is gone");
}

/// Applies `Keep`, `Now` and `Clear` to each instant.
pub async fn marks_keep_set_and_clear_instants(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let marked = |name: &TestRecord, mark| Draft {
        created: mark,
        ran: mark,
        completed: mark,
        ..draft(name, State::Completed)
    };
    for on_insert in [InstantChange::Keep, InstantChange::Now, InstantChange::Clear] {
        let name = TestRecord::fresh();
        let first = put(&*store, &insert(&name, marked(&name, on_insert))).await.record;
        assert_eq!(first.ran_at.is_some(), on_insert == InstantChange::Now, "{on_insert:?} on an insert");
        subject.advance(Duration::from_millis(1)).await;
        let mut before = first.clone();
        for mark in [
            InstantChange::Keep,
            InstantChange::Now,
            InstantChange::Keep,
            InstantChange::Clear,
            InstantChange::Keep,
        ] {
            let after = put(&*store, &replace(&before, marked(&name, mark))).await.record;
            match mark {
                InstantChange::Keep => assert_eq!(
                    (after.created_at, after.ran_at, after.completed_at),
                    (before.created_at, before.ran_at, before.completed_at),
                    "kept instants moved"
                ),
                InstantChange::Now => assert!(
                    after.ran_at.is_some_and(|at| at > first.created_at)
                        && after.completed_at == after.ran_at,
                    "`Now` is the store's clock at the write"
                ),
                InstantChange::Clear => {
                    assert_eq!((after.ran_at, after.completed_at), (None, None), "cleared")
                }
            }
            before = after;
        }
    }
}

/// Every field is loaded as it was written, by an insert and by an update, at its extremes too.
pub async fn a_loaded_record_equals_the_written_one(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    for state in State::ALL {
        let name = TestRecord::fresh();
        let plain = put(&*store, &insert(&name, draft(&name, state))).await;
        // `put` compares what is loaded with `Change::apply`.
        let full = put(&*store, &replace(&plain.record, everything(&name, state))).await;
        put(&*store, &replace(&full.record, draft(&name, state))).await;
        let name = TestRecord::fresh();
        put(&*store, &insert(&name, everything(&name, state))).await;
    }
    for number in [0, 1, u64::MAX >> 1, (u64::MAX >> 1) + 1, u64::MAX] {
        let name = TestRecord::fresh();
        let mut change = insert(&name, draft(&name, State::InProgress));
        change.nonce = Nonce(number);
        change.draft =
            change.draft.map(|draft| Draft { birth: Nonce(number), owner: Nonce(!number), ..draft });
        let stored = put(&*store, &change).await;
        put(&*store, &replace(&stored.record, draft(&name, State::Completed))).await;
    }
    // Under tenant scope the next generation of one id may serve another operation.
    let name = TestRecord::fresh();
    let old = put(&*store, &insert(&name, draft(&name, State::Completed))).await;
    let operation = Operation { method: "PATCH".into(), path: "/zahlungen/ä".into() };
    let identity = Arc::new(Identity { operation, ..Identity::clone(&name.identity) });
    put(&*store, &replace(&old.record, draft(&TestRecord { identity, ..name }, State::InProgress))).await;
}

/// A draft with every field set, most of them at the edge of their type.
fn everything(name: &TestRecord, state: State) -> Draft {
    let mut fingerprint = [0xfe; 37];
    fingerprint[0] = 1; // its version
    Draft {
        attempt: u32::MAX,
        flags: Flags { dead_letter: true, owed: true, asynchronous: true, not_retained: true },
        fingerprint: Some(Fingerprint::from_bytes(&fingerprint).expect("a fingerprint of version 1")),
        point: u16::MAX,
        created: InstantChange::Now,
        ran: InstantChange::Now,
        completed: InstantChange::Now,
        due_in: Some(LONG),
        expires_in: Some(LONG + Duration::from_micros(1)),
        purge_in: Some(100 * 365 * 24 * LONG),
        note: RecordDetails {
            status: Some(599),
            last_error: Some(ErrorCode::GivenUp),
            provider_id: Some("pi_\u{1f4b6}".to_owned()),
            lapses: u32::MAX,
            tries: 3,
            absent_at: Some(i64::MAX),
            trace: Some("4bf92f3577b34da6a3ce929d0e0e4736".to_owned()),
            phases: vec!["reserve".to_owned(), "charge \u{1f4b6}".to_owned()],
            calling: Some(u16::MAX),
            doubt: Some(u16::MAX),
            doubted: Some(u64::MAX - 1),
            unproven: Some(503),
        },
        ..draft(name, state)
    }
}

/// A later configuration governs later records only.
pub async fn every_record_keeps_its_own_policy(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let question =
        Some(Question { path: "/by-key/{key}".into(), executed: vec![200], ..Question::default() });
    let reconcile = Some(Reconcile::new(LONG, 7).with(|reconcile| reconcile.question = question));
    let mut policies = vec![
        Policy::default(),
        Policy::payments(),
        Policy::stripe(),
        Policy::one_transaction().with(|policy| policy.reconcile = reconcile),
    ];
    policies.extend((0..20).map(|n| Policy::default().with(|policy| policy.response_version = 1000 + n)));
    let named: Vec<(TestRecord, Arc<Policy>)> =
        policies.into_iter().map(|p| (TestRecord::fresh(), Arc::new(p))).collect();
    let begin = |(name, policy): &(TestRecord, Arc<Policy>)| {
        insert(name, Draft { policy: policy.clone(), ..draft(name, State::InProgress) })
    };
    commit_all(&*store, named.iter().map(begin).collect()).await;
    let records = load_all(&*store, named.iter().map(|(name, _)| name.id)).await;
    assert_eq!(records.len(), named.len(), "each is there");
    for ((name, policy), stored) in named.iter().zip(records) {
        assert_eq!(
            (stored.record.id, &stored.record.policy),
            (name.id, policy),
            "a record changed its rules"
        );
    }
}

/// It adds the history line, and leaves the record alone.
pub async fn a_change_without_a_draft_only_adds_to_the_history(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let mut line =
        telling(insert(&name, draft(&name, State::InProgress)), HistoryKind::LateAnswer, "no record");
    (line.draft, line.expect) = (None, Expect::Anything);
    assert!(matches!(commit(&*store, &line).await, Commit::Done(_)), "a line needs no record");
    assert_eq!(load(&*store, name.id).await, None, "a line makes no record");
    let stored = put(&*store, &insert(&name, draft(&name, State::InProgress))).await;
    assert!(matches!(commit(&*store, &line).await, Commit::Done(_)), "a line fits every record");
    assert_eq!(
        load(&*store, name.id).await.map(|s| s.record),
        Some(stored.record),
        "a line changed a record"
    );
    assert_eq!(history(&*store, name.id).await.len(), 2, "both lines are stored");
}
