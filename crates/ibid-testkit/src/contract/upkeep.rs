//! The part of a store that background chores use: renew, due, reap, settings.

use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{BodyKind, Change, Commit, Draft, HistoryKind, InstantChange, StoredBody};
use ibid_core::fingerprint::Fingerprint;
use ibid_core::reap::{ReapCount, ReapTarget};
use ibid_core::record::{Flags, Nonce, Record, RecordDetails, State, Version};
use ibid_core::scope::RecordId;
use ibid_core::store::{RecordFilter, RenewOutcome, SetOutcome, Store};

use super::{
    LONG, SHORT, StoreUnderTest, TICK, TestRecord, answering, browse, commit, commit_all, draft, due,
    expect_conflict, history, insert, load, load_all, nonce, put, reap_all, replace, take_over, telling,
};

/// Otherwise an attempt's renewal would make the store refuse its own finish.
pub async fn a_renewal_moves_the_due_instant_and_nothing_else(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let running = Draft { due_in: Some(SHORT), purge_in: Some(LONG), ..draft(&name, State::InProgress) };
    let first = put(&*store, &answering(insert(&name, running), b"kept")).await;
    subject.advance(TICK).await;
    let until = renew_lease(&*store, &first.record).await;
    let after = load(&*store, name.id).await.expect("it exists");
    assert_eq!(after.response, first.response, "a renewal leaves the bodies alone");
    let expected = Record { due_at: after.record.due_at, ..(*first.record).clone() };
    assert_eq!(*after.record, expected, "a renewal moves the due instant alone");
    assert_eq!(after.record.due_at, Some(until), "the returned instant is the stored one");
    let left = until.since(after.now);
    let longest = LONG + store.facts().clock.skew_max();
    assert!(
        left <= longest && left > LONG / 2,
        "it runs for the policy's lease from the store's now: {left:?}"
    );
    // The response stays, and so its status must.
    let note = first.record.note.clone();
    put(&*store, &replace(&first.record, Draft { note, ..draft(&name, State::Completed) })).await;
}

/// A lease that another attempt holds, that has ended, or that never existed can't be renewed.
pub async fn a_renewal_at_another_version_is_lost(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let running = |name: &TestRecord| Draft { due_in: Some(LONG), ..draft(name, State::InProgress) };
    let (live, other, done, none) =
        (TestRecord::fresh(), TestRecord::fresh(), TestRecord::fresh(), TestRecord::fresh());
    let live = put(&*store, &insert(&live, running(&live))).await.record;
    let other = put(&*store, &insert(&other, running(&other))).await.record;
    let done = put(&*store, &insert(&done, draft(&done, State::Completed))).await.record;
    let leases = vec![
        (none.id, Version { count: 1, nonce: nonce() }),
        (live.id, live.version),
        (other.id, Version { nonce: Nonce(!other.version.nonce.0), ..other.version }),
        (other.id, Version { count: other.version.count + 1, ..other.version }),
        (done.id, done.version),
    ];
    let fates = store.renew(leases).await.expect("a renewal succeeds");
    let lost = [true, false, true, true, true];
    assert_eq!(fates.len(), lost.len(), "every renewal has a fate");
    for (index, (fate, lost)) in fates.iter().zip(lost).enumerate() {
        assert_eq!(*fate == RenewOutcome::Lost, lost, "renewal {index} came out as {fate:?}");
    }
    for record in [other, done] {
        let after = load(&*store, record.id).await.expect("it exists");
        assert_eq!(after.record, record, "a lost renewal wrote");
    }
    assert!(store.renew(vec![]).await.expect("nothing to renew").is_empty());
}

/// The version stays the same through every renewal, so the finish at the end is still accepted.
pub async fn a_long_run_is_renewed_again_and_again_and_still_finishes(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let running = Draft { due_in: Some(LONG), ..draft(&name, State::InProgress) };
    let first = put(&*store, &insert(&name, running.clone())).await;
    let mut last = first.record.due_at.expect("it holds a lease");
    for _ in 0..20 {
        subject.advance(Duration::from_millis(1)).await;
        let until = renew_lease(&*store, &first.record).await;
        assert!(until > last, "each renewal ends later than the one before");
        last = until;
        expect_conflict(&*store, &take_over(&first.record, running.clone()), "the lease is live").await;
    }
    put(&*store, &answering(replace(&first.record, draft(&name, State::Completed)), b"done")).await;
    let lost = store.renew(vec![(name.id, first.record.version)]).await.expect("a renewal succeeds");
    assert_eq!(lost, vec![RenewOutcome::Lost], "after the finish there is nothing to renew");
}

/// Returns only the requested state, only lapsed instants, in order, up to the limit.
pub async fn due_gives_one_state_longest_due_first(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let names: Vec<TestRecord> = (0..7).map(|_| TestRecord::fresh()).collect();
    let lapsing = |name: &TestRecord, state, due_in| {
        answering(insert(name, Draft { due_in, ..draft(name, state) }), b"inline")
    };
    let ms = |n| Some(Duration::from_millis(n));
    commit_all(
        &*store,
        vec![
            lapsing(&names[2], State::Unknown, ms(3)),
            lapsing(&names[0], State::Unknown, ms(1)),
            lapsing(&names[1], State::Unknown, ms(2)),
            lapsing(&names[3], State::Unknown, ms(4)),
            lapsing(&names[4], State::Unknown, Some(LONG)),
            lapsing(&names[5], State::Unknown, None),
            lapsing(&names[6], State::Pending, ms(1)),
        ],
    )
    .await;
    subject.advance(TICK).await;
    let due_records = due(&*store, State::Unknown, 3).await;
    let ids: Vec<RecordId> = due_records.iter().map(|stored| stored.record.id).collect();
    // A store may write them one after the other, so only the stored instants tell their order.
    let mut lapsed = load_all(&*store, names[..4].iter().map(|name| name.id)).await;
    lapsed.sort_by_key(|stored| stored.record.due_at);
    let expected: Vec<RecordId> = lapsed.iter().take(3).map(|stored| stored.record.id).collect();
    assert_eq!(ids, expected, "longest due first, no more than asked");
    assert_eq!(due_records[2].body(), Some(&b"inline"[..]), "with all that a load gives");
    assert!(due_records.iter().all(|stored| stored.record.is_due(stored.now)), "nothing before its time");
    let all = due(&*store, State::Unknown, 100).await;
    assert_eq!(all.len(), 4, "neither the later nor the never due");
    let pending = due(&*store, State::Pending, 100).await;
    assert_eq!(
        pending.iter().map(|s| s.record.id).collect::<Vec<_>>(),
        [names[6].id],
        "each state by itself"
    );
    assert!(due(&*store, State::Unknown, 0).await.is_empty(), "zero means none");
    for stored in all.into_iter().chain(pending) {
        let name = TestRecord { id: stored.record.id, identity: stored.record.identity.clone() };
        let note = stored.record.note.clone();
        put(&*store, &replace(&stored.record, Draft { note, ..draft(&name, State::Completed) })).await;
    }
    assert!(due(&*store, State::Unknown, 100).await.is_empty(), "what is settled is not due");
}

/// A row without such a time is never removed.
pub async fn reaping_removes_the_oldest_first_and_nothing_before_its_time(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    reap_all(&*store, ReapTarget::Records).await;
    let mut names: Vec<TestRecord> = (0..5).map(|_| TestRecord::fresh()).collect();
    let ms = |n| Some(Duration::from_millis(n));
    let terms = [ms(1), ms(2), ms(3), Some(LONG), None];
    // The order of the instants is not the order of the writes.
    let going = names.iter().zip(terms).rev().map(|(name, purge_in)| {
        answering(insert(name, Draft { purge_in, ..draft(name, State::Completed) }), b"going")
    });
    commit_all(&*store, going.collect()).await;
    // A store may write them one after the other, so only the stored instants tell their order.
    let mut lapsing = load_all(&*store, names[..3].iter().map(|name| name.id)).await;
    lapsing.sort_by_key(|stored| stored.record.purge_at);
    names[..3].sort_by_key(|name| lapsing.iter().position(|stored| stored.record.id == name.id));
    subject.advance(TICK).await;
    let reap =
        async |from, limit| store.reap(ReapTarget::Records, from, limit).await.expect("a reaping succeeds");
    let step = reap(None, 0).await;
    assert_eq!((step.stripped, step.removed, step.next), (0, 0, None), "zero means none");
    let step = reap(None, 2).await;
    assert_eq!((step.stripped, step.removed), (0, 2), "no more than asked");
    let stands = async |name: &TestRecord| load(&*store, name.id).await.is_some();
    assert!(!stands(&names[0]).await && !stands(&names[1]).await, "the oldest go first");
    assert!(stands(&names[2]).await, "the limit holds");
    assert!(step.next.is_some(), "there is more");
    let step = reap(step.next, 100).await;
    assert_eq!((step.stripped, step.removed, step.next), (0, 1, None), "the rest of what is past its time");
    assert!(!stands(&names[2]).await, "it went");
    assert!(stands(&names[3]).await, "nothing goes before its time");
    assert!(stands(&names[4]).await, "what has no such time stays");
    assert_eq!(reap(None, 100).await.removed, 0, "nothing is left to remove");
}

/// An expired record keeps id, fingerprint, state and instants. Stripping is a write: a change that is based on an
/// earlier read is refused.
pub async fn an_expired_record_is_stripped_to_a_tombstone(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    reap_all(&*store, ReapTarget::Records).await;
    let (name, other) = (TestRecord::of("shop of tombs", "key-1"), TestRecord::of("shop of tombs", "key-2"));
    let expired = put(&*store, &expiring(&name)).await;
    let live = Draft { expires_in: Some(LONG), purge_in: Some(LONG), ..draft(&other, State::Completed) };
    let live = put(&*store, &answering(insert(&other, live), b"live")).await;
    subject.advance(TICK).await;
    let bodies = async || match store.bodies() {
        Some(bodies) => {
            Some(bodies.bodies(name.id, expired.record.birth).await.expect("bodies are read").len())
        }
        None => None,
    };
    assert!(matches!(bodies().await, Some(2) | None), "request and the result of a phase");
    let reaped = reap_all(&*store, ReapTarget::Records).await;
    assert_eq!((reaped.stripped, reaped.removed), (1, 0));

    let tomb = load(&*store, name.id).await.expect("the row stays");
    assert_eq!(tomb.response, None, "the answer is gone");
    assert!(matches!(bodies().await, Some(0) | None), "and so are all bodies");
    assert!(tomb.record.identity.is_forgotten(), "whose it was is not kept");
    let forgotten = Record {
        identity: tomb.record.identity.clone(),
        note: RecordDetails::default(),
        version: tomb.record.version,
        ..(*expired.record).clone()
    };
    assert_eq!(*tomb.record, forgotten, "the rest stays as it was, fingerprint and instants");
    assert_ne!(tomb.record.version, expired.record.version, "under another Version");
    let late = Draft { due_in: Some(LONG), ..draft(&name, State::InProgress) };
    let Commit::Conflict(Some(stands)) = commit(&*store, &replace(&expired.record, late)).await else {
        panic!("who read it before must not bring it back without its tenant and key");
    };
    assert_eq!(stands.record, tomb.record);
    if let Some(browse) = store.browse() {
        let list = async |filter| browse.list(filter).await.expect("a list succeeds").items;
        let listed = list(RecordFilter::default().with(|filter| filter.limit = 1000)).await;
        assert!(listed.iter().any(|stored| stored.record == tomb.record), "a list shows it");
        let of_shop = RecordFilter::default().with(|filter| filter.tenant = Some("shop of tombs".to_owned()));
        assert_eq!(list(of_shop).await.len(), 1, "but not as the tenant's");
    }
    assert_eq!(
        load(&*store, other.id).await.map(|stored| stored.response),
        Some(live.response),
        "others stay"
    );
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.stripped, 0, "it is stripped once");
}

/// The new generation begins as if the row were absent: nothing of the tombstone shows through.
pub async fn a_tombstone_gives_way_to_a_new_generation_whole(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let before = put(&*store, &expiring(&name)).await.record;
    subject.advance(TICK).await;
    reap_all(&*store, ReapTarget::Records).await;
    let running = Draft { due_in: Some(LONG), ..draft(&name, State::InProgress) };
    let tomb = load(&*store, name.id).await.expect("the row stays").record;
    assert_eq!((tomb.birth, tomb.fingerprint), (before.birth, before.fingerprint));
    let mut again = replace(&tomb, running);
    again.clears_bodies = true;
    let birth = again.nonce;
    again.draft.as_mut().expect("it writes").birth = birth;
    let record = put(&*store, &again).await.record;
    assert_eq!(record.identity, name.identity, "its identity is stored again");
    let finished = Draft { expires_in: Some(SHORT), purge_in: Some(LONG), ..draft(&name, State::Completed) };
    put(&*store, &answering(replace(&record, finished), b"again")).await;
    subject.advance(TICK).await;
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.stripped, 1, "and it is stripped in its turn");
    assert_eq!(load(&*store, name.id).await.expect("the row stays").response, None);
}

/// A record that needs manual attention stays complete until an operator has handled it.
pub async fn a_dead_letter_is_neither_stripped_nor_removed(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    reap_all(&*store, ReapTarget::Records).await;
    let name = TestRecord::fresh();
    let flags = Flags { dead_letter: true, ..Flags::default() };
    let past =
        Draft { flags, expires_in: Some(SHORT), purge_in: Some(SHORT), ..draft(&name, State::Completed) };
    let letter = put(&*store, &answering(insert(&name, past.clone()), b"500")).await;
    subject.advance(TICK).await;
    if let Some(browse) = store.browse() {
        let ripe = browse.count_reapable(ReapTarget::Records).await.expect("the store answers");
        assert_eq!((ripe.strip, ripe.remove), (0, 0));
    }
    let reaped = reap_all(&*store, ReapTarget::Records).await;
    assert_eq!((reaped.stripped, reaped.removed), (0, 0));
    assert_eq!(load(&*store, name.id).await.map(|stored| stored.record), Some(letter.record.clone()));
    let acknowledged = Draft {
        flags: Flags::default(),
        expires_in: Some(Duration::ZERO),
        purge_in: Some(Duration::ZERO),
        ..past
    };
    put(&*store, &replace(&letter.record, acknowledged)).await;
    subject.advance(TICK).await;
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.removed, 1, "then it goes");
}

/// The fingerprint of a tombstone is never compared, so its secret may be retired.
pub async fn a_tombstone_needs_no_secret(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let mut bytes = [0x78; Fingerprint::LEN];
    bytes[0] = 1; // its version
    bytes[1..5].copy_from_slice(&nonce().0.to_be_bytes()[..4]);
    let fingerprint = Fingerprint::from_bytes(&bytes).expect("a fingerprint of version 1");
    let expiring = Draft {
        fingerprint: Some(fingerprint),
        expires_in: Some(SHORT),
        purge_in: Some(LONG),
        ..draft(&name, State::Completed)
    };
    put(&*store, &insert(&name, expiring)).await;
    let is_needed = async || {
        let mut known = Vec::new();
        while let Some(other) =
            browse(&*store).find_unknown_secret(known.clone()).await.expect("the store answers")
        {
            known.push(other);
        }
        known.contains(&fingerprint.secret())
    };
    assert!(is_needed().await, "while it may be compared");
    subject.advance(TICK).await;
    reap_all(&*store, ReapTarget::Records).await;
    assert!(!is_needed().await, "and no longer");
}

/// A dry run counts what a real run removes, and changes nothing.
pub async fn a_reap_preview_matches_the_reap(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    reap_all(&*store, ReapTarget::Records).await;
    let mut changes = Vec::new();
    for _ in 0..5 {
        let name = TestRecord::fresh();
        let gone = Draft { purge_in: Some(SHORT), ..draft(&name, State::Completed) };
        changes.push(answering(insert(&name, gone), b"going"));
    }
    changes.extend((0..3).map(|_| expiring(&TestRecord::fresh())));
    let running = TestRecord::fresh();
    let lapsed = Draft { due_in: Some(SHORT), ..draft(&running, State::InProgress) };
    changes.push(insert(&running, lapsed));
    commit_all(&*store, changes).await;
    let ripe = async || browse(&*store).count_reapable(ReapTarget::Records).await.expect("it is counted");
    subject.advance(TICK).await;
    assert_eq!(ripe().await, ReapCount { strip: 3, remove: 5 });
    assert_eq!(ripe().await, ReapCount { strip: 3, remove: 5 }, "counting touched nothing");
    let reaped = reap_all(&*store, ReapTarget::Records).await;
    assert_eq!((reaped.stripped, reaped.removed), (3, 5));
    assert_eq!(ripe().await, ReapCount::default());
    let running = load(&*store, running.id).await.expect("it exists");
    assert_eq!(running.record.state, State::InProgress, "what has no such instant is left alone");
    // Otherwise the next test that looks for due records would find it.
    let done = TestRecord { id: running.record.id, identity: running.record.identity.clone() };
    put(&*store, &replace(&running.record, draft(&done, State::Completed))).await;
}

/// The history of a record that still exists stays, however old it is.
pub async fn history_goes_after_its_time_if_its_record_is_gone(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let (live, gone) = (TestRecord::fresh(), TestRecord::fresh());
    put(&*store, &telling(insert(&live, draft(&live, State::Unknown)), HistoryKind::Unknown, "live")).await;
    let going = Draft { purge_in: Some(Duration::ZERO), ..draft(&gone, State::Completed) };
    put(&*store, &telling(insert(&gone, going), HistoryKind::Settled, "gone")).await;
    subject.advance(TICK).await;
    let (at_once, later) = (ReapTarget::History { keep: SHORT }, ReapTarget::History { keep: LONG });
    let line_count = async |name: &TestRecord| history(&*store, name.id).await.len();
    reap_all(&*store, at_once).await;
    assert_eq!((line_count(&live).await, line_count(&gone).await), (1, 1), "both records are there");
    reap_all(&*store, ReapTarget::Records).await;
    assert_eq!(reap_all(&*store, later).await.removed, 0, "nothing goes before its time");
    assert_eq!((line_count(&live).await, line_count(&gone).await), (1, 1));
    let ripe = browse(&*store).count_reapable(at_once).await.expect("it is counted");
    assert!(ripe.remove > 0 && ripe.strip == 0, "{ripe:?}");
    assert_eq!(reap_all(&*store, at_once).await.removed, ripe.remove, "what was counted goes");
    assert_eq!((line_count(&live).await, line_count(&gone).await), (1, 0));
    let stored = load(&*store, live.id).await.expect("it exists");
    put(&*store, &replace(&stored.record, draft(&live, State::Completed))).await;
}

/// A record that will be stripped soon and removed much later, with every part that a record can have.
fn expiring(name: &TestRecord) -> Change {
    let mut bytes = [0x5a; Fingerprint::LEN];
    bytes[0] = 1; // its version
    let note = RecordDetails {
        status: Some(201),
        provider_id: Some("ch_1".to_owned()),
        trace: Some("4bf92f3577b34da6a3ce929d0e0e4736".to_owned()),
        ..RecordDetails::default()
    };
    let expiring = Draft {
        fingerprint: Fingerprint::from_bytes(&bytes),
        created: InstantChange::Now,
        ran: InstantChange::Now,
        completed: InstantChange::Now,
        expires_in: Some(SHORT),
        purge_in: Some(LONG),
        note,
        ..draft(name, State::Completed)
    };
    let mut change = answering(insert(name, expiring), b"a secret answer");
    change.bodies.extend(
        [BodyKind::Request, BodyKind::Phase(1)]
            .map(|kind| StoredBody { kind, data: Bytes::from_static(b"asked") }),
    );
    change
}

/// A setting changes only where the writer knew its value.
pub async fn a_setting_changes_only_from_the_value_expected(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = format!("contract {:016x}", nonce().0);
    let set = async |expected: Option<&'static str>, value: &'static str| {
        let set = store.compare_and_set(&name, expected.map(Bytes::from), Bytes::from(value)).await;
        set.expect("the store answers")
    };
    let lost = |stored: Option<&'static str>| SetOutcome::Lost(stored.map(Bytes::from));
    assert_eq!(store.setting(&name).await.expect("the store answers"), None);
    assert_eq!(set(Some("a"), "b").await, lost(None), "it was never set");
    assert_eq!(set(None, "a").await, SetOutcome::Won);
    assert_eq!(set(None, "b").await, lost(Some("a")));
    assert_eq!(set(Some("b"), "c").await, lost(Some("a")));
    assert_eq!(set(Some("a"), "b").await, SetOutcome::Won);
    assert_eq!(set(Some("a"), "b").await, SetOutcome::Won, "a repeated write after a lost reply");
    assert_eq!(set(Some("b"), "").await, SetOutcome::Won, "nothing is a value too");
    assert_eq!(store.setting(&name).await.expect("the store answers"), Some(Bytes::new()));
    let other = store.setting(&format!("{name} too")).await.expect("the store answers");
    assert_eq!(other, None, "each name by itself");
}

/// Every later writer gets the first writer's value.
pub async fn the_first_value_kept_stays(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = format!("contract {:016x}", nonce().0);
    let keep = async |value: &'static [u8]| {
        store.put_if_absent(&name, Bytes::from_static(value)).await.expect("it is kept")
    };
    assert_eq!(keep(b"first").await, &b"first"[..]);
    assert_eq!(keep(b"second").await, &b"first"[..]);
    let other = store.put_if_absent(&format!("{name} too"), Bytes::new()).await.expect("it is kept");
    assert_eq!(other, Bytes::new(), "each name by itself, and nothing is a value too");
}

pub(super) async fn renew_lease(store: &dyn Store, record: &Record) -> ibid_core::time::Timestamp {
    let fates = store.renew(vec![(record.id, record.version)]).await.expect("a renewal succeeds");
    match fates[..] {
        [RenewOutcome::Until(until)] => until,
        _ => panic!("an uncontended lease was not renewed: {fates:?}"),
    }
}
