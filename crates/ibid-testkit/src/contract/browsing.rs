//! Queries of an operator: list, count, history.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::{Draft, Expect, HistoryKind, InstantChange};
use ibid_core::fingerprint::Fingerprint;
use ibid_core::reap::ReapTarget;
use ibid_core::record::{Flags, Record, State};
use ibid_core::scope::{Identity, Operation, RecordId};
use ibid_core::store::{Cursor, PathPattern, RecordCounts, RecordFilter, RowCount, Store};

use super::{
    LONG, StoreUnderTest, TICK, TestRecord, browse, commit, commit_all, draft, history, insert, load, nonce,
    put, reap_all, replace, telling,
};

/// Lists by state, tenant, key and prefix, and page by page.
pub async fn a_list_is_filtered_and_paged(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let (ours, theirs) = (format!("ours-{:x}", nonce().0), format!("theirs-{:x}", nonce().0));
    let mut names: Vec<TestRecord> = (0..9).map(|n| TestRecord::of(&ours, &format!("key-{n}"))).collect();
    names.sort_by_key(|name| name.id);
    let stranger = TestRecord::of(&theirs, "key-1");
    let state = |index: usize| if index < 3 { State::Completed } else { State::Retryable };
    let mut changes: Vec<_> =
        names.iter().enumerate().map(|(index, name)| insert(name, draft(name, state(index)))).collect();
    changes.push(insert(&stranger, draft(&stranger, State::Completed)));
    commit_all(&*store, changes).await;

    let of_ours = || RecordFilter::default().with(|filter| filter.tenant = Some(ours.clone()));
    let all: Vec<RecordId> = names.iter().map(|name| name.id).collect();
    assert_eq!(list(&*store, of_ours()).await, all, "one tenant's");
    let completed = of_ours().with(|filter| filter.state = Some(State::Completed));
    assert_eq!(list(&*store, completed).await, all[..3], "and in one state");
    let by_key = of_ours().with(|filter| filter.key = Some("key-1".to_owned()));
    let one = names.iter().find(|name| name.identity.key.as_str() == "key-1").expect("it was made above").id;
    assert_eq!(list(&*store, by_key).await, [one], "and under one key");

    assert!(
        page(&*store, of_ours().with(|filter| filter.limit = 4)).await.0.len() <= 4,
        "no more than asked"
    );
    for state in [None, Some(State::Retryable)] {
        let paged = of_ours().with(|filter| (filter.limit, filter.state) = (4, state));
        let expected = if state.is_some() { &all[3..] } else { &all[..] };
        assert_eq!(list(&*store, paged).await, expected, "the cursor loses none and repeats none");
    }

    let prefixed = |digits: &str| {
        RecordFilter::default().with(|filter| filter.prefix = Some(digits.parse().expect("hex digits")))
    };
    for digits in [&one.to_string()[..], &one.short(), &one.to_string()[..5]] {
        let matches = list(&*store, prefixed(digits)).await;
        assert!(matches.contains(&one), "a prefix of its id finds it");
        assert!(matches.iter().all(|id| id.to_string().starts_with(digits)), "and nothing else");
    }
    assert_eq!(list(&*store, of_ours().with(|filter| filter.limit = 0)).await, [], "zero means none");
}

/// Filters by method, path, route, age and dead letter, each alone and all together.
pub async fn a_list_is_narrowed_by_operation_age_and_dead_letter(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let tenant = format!("narrow-{:x}", nonce().0);
    let dead = Flags { dead_letter: true, owed: true, ..Flags::default() };
    let put_at = async |method: &str, path: &str, flags: Flags| {
        let mut name = TestRecord::of(&tenant, &format!("key-{:x}", nonce().0));
        let operation = Operation { method: method.into(), path: path.into() };
        name.identity = Arc::new(Identity { operation, ..Identity::clone(&name.identity) });
        let row = Draft { flags, created: InstantChange::Now, ..draft(&name, State::Unknown) };
        put(&*store, &insert(&name, row)).await.record
    };
    let plain = put_at("POST", "/pay", Flags::default()).await;
    subject.advance(TICK).await;
    let odd = put_at("POST", "/pay_x%*?[a]\\", Flags { owed: true, ..Flags::default() }).await;
    let one = put_at("PATCH", "/pay/7", dead).await;
    let deep = put_at("POST", "/pay/7/refund", dead).await;

    let of = || RecordFilter::default().with(|filter| filter.tenant = Some(tenant.clone()));
    let sorted = |records: &[&Record]| {
        let mut ids: Vec<RecordId> = records.iter().map(|record| record.id).collect();
        ids.sort_unstable();
        ids
    };
    let at = |path| of().with(|filter| filter.path = Some(path));
    assert_eq!(list(&*store, of().with(|filter| filter.method = Some("PATCH".to_owned()))).await, [one.id]);
    assert_eq!(list(&*store, at(PathPattern::of_path("/pay"))).await, [plain.id], "no more than the path");
    assert_eq!(list(&*store, at(PathPattern::of_path("/PAY"))).await, [], "letters have a case");
    assert_eq!(list(&*store, at(PathPattern::of_path("/pay_x%*?[a]\\"))).await, [odd.id], "as it is written");
    assert_eq!(list(&*store, at(PathPattern::of_path("/pay/_"))).await, [], "and no pattern of the store's");
    assert_eq!(list(&*store, at(PathPattern::of_route("/pay/{id}"))).await, [one.id], "one segment");
    assert_eq!(list(&*store, at(PathPattern::of_route("/pay/{id}/refund"))).await, [deep.id]);
    let rest = at(PathPattern::of_route("/pay/{*rest}"));
    assert_eq!(list(&*store, rest).await, sorted(&[&one, &deep]), "all that follow");
    let needy = of().with(|filter| filter.dead_letter = true);
    assert_eq!(list(&*store, needy).await, sorted(&[&one, &deep]), "only dead letters");

    let from = of().with(|filter| filter.created_from = Some(odd.created_at));
    assert_eq!(list(&*store, from).await, sorted(&[&odd, &one, &deep]), "the instant itself is in");
    let before = of().with(|filter| filter.created_before = Some(odd.created_at));
    assert_eq!(list(&*store, before).await, [plain.id], "the instant itself is not");
    assert_eq!(
        list(&*store, of().with(|filter| filter.older_than = Some(LONG))).await,
        [],
        "no record is so old"
    );
    assert_eq!(list(&*store, of().with(|filter| filter.older_than = Some(Duration::MAX))).await, []);
    subject.advance(TICK).await;
    let aged = of().with(|filter| filter.older_than = Some(Duration::from_millis(1)));
    assert_eq!(list(&*store, aged).await.len(), 4, "by the store's own clock");
    let all = of().with(|filter| {
        filter.dead_letter = true;
        filter.state = Some(State::Unknown);
        filter.method = Some("POST".to_owned());
        filter.path = Some(PathPattern::of_route("/pay/{*rest}"));
        filter.created_from = Some(plain.created_at);
    });
    assert_eq!(list(&*store, all).await, [deep.id], "all of it must fit");
}

/// Counts each state separately, and the dead letters. A store that can't count says so.
pub async fn a_count_follows_every_write(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let count = async || browse(&*store).count().await.expect("a count succeeds");
    let before = count().await;
    if before == RecordCounts::default() {
        return;
    }
    let mut changes = Vec::new();
    for (index, state) in State::ALL.into_iter().enumerate() {
        for _ in 0..=index {
            let name = TestRecord::fresh();
            changes.push(insert(&name, draft(&name, state)));
        }
    }
    let name = TestRecord::fresh();
    let dead = Flags { dead_letter: true, owed: true, ..Flags::default() };
    changes.push(insert(&name, Draft { flags: dead, ..draft(&name, State::Unknown) }));
    let owed = TestRecord::fresh();
    let flags = Flags { owed: true, ..Flags::default() };
    changes.push(insert(&owed, Draft { flags, ..draft(&owed, State::Pending) }));
    commit_all(&*store, changes).await;
    subject.advance(Duration::from_millis(1)).await;
    // Only exact counts follow every write.
    let assert_grown = |counts: RecordCounts, by: [u64; State::ALL.len()], dead: u64| {
        for (index, state) in State::ALL.into_iter().enumerate() {
            let (before, after) = (before.by_state[index], counts.by_state[index]);
            if let (RowCount::Exact(before), RowCount::Exact(after)) = (before, after) {
                assert_eq!(after, before + by[index], "{state:?}");
            }
        }
        let letters = before.dead_letters.value().expect("dead letters are counted");
        assert_eq!(
            counts.dead_letters,
            RowCount::Exact(letters + dead),
            "dead letters are rare, and counted"
        );
    };
    let first = count().await;
    let unknown = State::ALL.iter().position(|state| *state == State::Unknown).expect("it is a state");
    assert!(matches!(first.by_state[unknown], RowCount::Exact(_)), "unknown records are rare, and counted");
    let since = first.oldest_unknown.expect("one is unknown");
    assert!(since >= Duration::from_millis(1), "since it came: {since:?}");
    assert_grown(first, [2, 2, 3, 4, 6], 1);
    let stored = load(&*store, name.id).await.expect("it exists");
    put(&*store, &replace(&stored.record, draft(&name, State::Completed))).await;
    assert_grown(count().await, [2, 2, 4, 4, 5], 0);
}

/// A node that lacks such a secret can then refuse to start.
pub async fn a_secret_that_records_need_is_found(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let mut known = Vec::new();
    // Other records may be in this store; their secrets are not of interest.
    while let Some(other) =
        browse(&*store).find_unknown_secret(known.clone()).await.expect("the store answers")
    {
        assert!(!known.contains(&other), "only what is not known");
        known.push(other);
    }
    let mut bytes = [0x77; Fingerprint::LEN];
    bytes[0] = 1; // its version
    bytes[1..5].copy_from_slice(&nonce().0.to_be_bytes()[..4]);
    let fingerprint = Fingerprint::from_bytes(&bytes).expect("a fingerprint of version 1");
    let name = TestRecord::fresh();
    put(&*store, &insert(&name, Draft { fingerprint: Some(fingerprint), ..draft(&name, State::Completed) }))
        .await;
    let secret = browse(&*store).find_unknown_secret(known.clone()).await.expect("the store answers");
    assert_eq!(secret, Some(fingerprint.secret()));
    known.push(fingerprint.secret());
    assert_eq!(browse(&*store).find_unknown_secret(known).await.expect("the store answers"), None);
}

/// History is oldest first, with the store's time of each write.
pub async fn a_history_is_in_order_and_outlives_its_record(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let first = telling(insert(&name, draft(&name, State::InProgress)), HistoryKind::Operator, "zero");
    let first = put(&*store, &first).await;
    subject.advance(Duration::from_millis(1)).await;
    let mut lapse = telling(replace(&first.record, draft(&name, State::Unknown)), HistoryKind::Lapse, "one");
    for what in HistoryKind::ALL {
        lapse = telling(lapse, what, what.name());
    }
    let lapsed = put(&*store, &lapse).await;
    let going = Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) };
    put(&*store, &telling(replace(&lapsed.record, going), HistoryKind::Settled, "")).await;
    let mut late =
        telling(insert(&name, draft(&name, State::Completed)), HistoryKind::LateAnswer, "last \u{2713}");
    (late.draft, late.expect) = (None, Expect::Anything);
    commit(&*store, &late).await;

    let written = history(&*store, name.id).await;
    let mut words = vec![(HistoryKind::Operator, "zero"), (HistoryKind::Lapse, "one")];
    words.extend(HistoryKind::ALL.map(|what| (what, what.name())));
    words.extend([(HistoryKind::Settled, ""), (HistoryKind::LateAnswer, "last \u{2713}")]);
    let lines: Vec<_> = written.iter().map(|line| (line.what, line.detail.as_str())).collect();
    assert_eq!(lines, words, "every line, in the order of the writes");
    assert_eq!(written[0].at, first.record.created_at, "with the store's time of its write");
    assert!(written[1].at > written[0].at && written[1].at == written[2].at, "one change, one instant");
    let other = browse(&*store).history(TestRecord::fresh().id).await.expect("a history is read");
    assert_eq!(other, vec![], "who did nothing has none");

    subject.advance(TICK).await;
    reap_all(&*store, ReapTarget::Records).await;
    assert_eq!(load(&*store, name.id).await, None, "the record is gone");
    assert_eq!(history(&*store, name.id).await, written, "history outlives its record");
}

/// Returns the ids of one page, sorted, and where the next one begins. A store chooses its own order.
async fn page(store: &dyn Store, filter: RecordFilter) -> (Vec<RecordId>, Option<Cursor>) {
    let page = browse(store).list(filter).await.expect("a list succeeds");
    let mut ids: Vec<RecordId> = page.items.iter().map(|stored| stored.record.id).collect();
    ids.sort_unstable();
    (ids, page.next)
}

/// Returns the ids of all pages, sorted.
async fn list(store: &dyn Store, mut filter: RecordFilter) -> Vec<RecordId> {
    let mut all = Vec::new();
    // A cursor that does not move must not make the suite loop forever.
    for _ in 0..1000 {
        let (ids, next) = page(store, filter.clone()).await;
        all.extend(ids);
        if next.is_none() || filter.limit == 0 {
            all.sort_unstable();
            return all;
        }
        filter.after = next;
    }
    panic!("a list has no end");
}
