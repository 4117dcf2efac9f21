//! Rows of a copy: stored as they are, once, behind a fence, and read back page by page.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{BodyKind, HistoryKind, LoadedBody};
use ibid_core::evidence::{EventName, Evidence, EvidenceSubject, StoredEvidence};
use ibid_core::fingerprint::Fingerprint;
use ibid_core::machine::Observation;
use ibid_core::policy::Policy;
use ibid_core::record::{ErrorCode, Flags, Nonce, Record, RecordDetails, State, Version};
use ibid_core::response::SavedResponse;
use ibid_core::scope::{Identity, RecordId};
use ibid_core::store::copy::{
    CopiedEvidence, CopiedHistory, CopiedLine, CopiedRecord, CopyPart, CopyRow, RowTotals, SettingFence,
};
use ibid_core::store::{CopyStore, Cursor, SetOutcome, Store};
use ibid_core::time::Timestamp;

use super::{LONG, StoreUnderTest, TestRecord, draft, due, history, load, nonce, put, replace, response};

/// Rows come back exactly as they were inserted, each once, however often they are inserted.
pub async fn copied_rows_come_back_as_they_were(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let copier = copier(&*store);
    let fence = fence(&*store).await;
    let now = copier.clock().await.expect("the clock is read");
    let rows = all_rows(&*store, now);
    let expected = totals(&rows);
    let before = export_all(copier).await;
    for _ in 0..2 {
        copier.import(fence.clone(), rows.clone()).await.expect("rows are inserted");
    }
    let added: Vec<CopyRow> =
        export_all(copier).await.into_iter().filter(|row| !before.contains(row)).collect();
    assert_eq!(added.len(), rows.len(), "each row is there once");
    for row in &rows {
        assert!(added.contains(row), "{row:#?}\nis not among {added:#?}");
    }
    assert_eq!(totals(&added), expected);
}

/// A row takes the place of an earlier version of itself, with all that belonged to that one.
pub async fn a_copied_row_replaces_its_earlier_version(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let copier = copier(&*store);
    let fence = fence(&*store).await;
    let now = copier.clock().await.expect("the clock is read");
    let name = TestRecord::fresh();
    let earlier = Record {
        flags: Flags { dead_letter: true, ..Flags::default() },
        due_at: Some(now.before(SECOND)),
        ..record(&name, State::Unknown, now)
    };
    let version = Version { count: earlier.version.count + 1, nonce: nonce() };
    let later = Record { version, birth: earlier.birth, ..record(&name, State::Completed, now) };
    let has_bodies = store.bodies().is_some();
    let large = |byte| Bytes::from(vec![byte; 500_000]);
    let request =
        if has_bodies { vec![LoadedBody { kind: BodyKind::Request.code(), data: large(1) }] } else { vec![] };
    let mut before = vec![row(earlier, Some(SavedResponse::Plain(response(large(2)))), request)];
    let mut after = vec![row(later.clone(), Some(SavedResponse::Plain(response(&b"paid"[..]))), vec![])];
    if store.browse().is_some() {
        let history = |lines: Vec<CopiedLine>| CopyRow::History(CopiedHistory { id: name.id, lines });
        before.push(history(lines(now)));
        after.push(history([lines(now), lines(now.after(SECOND))].concat()));
    }
    if store.evidence().is_some() {
        let CopyRow::Evidence(open) = evidence(now, true) else { panic!("it is evidence") };
        before.push(CopyRow::Evidence(open.clone()));
        let (mut used, purge_at) = (open.clone(), open.purge_at.after(SECOND));
        (used.stored.open, used.purge_at) = (false, purge_at);
        after.push(CopyRow::Evidence(used));
    }
    let others = export_all(copier).await;
    for rows in [&before, &after, &after] {
        copier.import(fence.clone(), rows.clone()).await.expect("rows are stored");
        let added: Vec<CopyRow> =
            export_all(copier).await.into_iter().filter(|row| !others.contains(row)).collect();
        assert_eq!(totals(&added), totals(rows), "{added:#?}\nare not {rows:#?}");
    }
    subject.advance(super::TICK).await;
    let waiting = due(&*store, State::Unknown, 1000).await;
    assert!(waiting.iter().all(|stored| stored.record.id != name.id), "it is no longer due");
    put(&*store, &replace(&later, draft(&name, State::Completed))).await;
}

/// Rows are stored only while the setting has the value of the fence.
pub async fn a_copied_row_needs_its_fence(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let fence = fence(&*store).await;
    let copier = copier(&*store);
    let now = copier.clock().await.expect("the clock is read");
    let name = TestRecord::fresh();
    let mut rows = vec![row(record(&name, State::Completed, now), None, vec![])];
    if store.browse().is_some() {
        rows.push(CopyRow::History(CopiedHistory { id: name.id, lines: lines(now) }));
    }
    let CopyRow::Evidence(event) = evidence(now, true) else { panic!("it is evidence") };
    if store.evidence().is_some() {
        rows.push(CopyRow::Evidence(event.clone()));
    }
    let moved_on = SetOutcome::Won;
    let set = store.compare_and_set(FENCE, Some(fence.value.clone()), Bytes::from_static(b"other")).await;
    assert_eq!(set.expect("a setting is written"), moved_on);
    let absent = SettingFence { name: "no such setting", value: Bytes::from_static(b"") };
    for row in rows {
        let refused =
            copier.import(fence.clone(), vec![row.clone()]).await.expect_err("the fence does not hold");
        assert!(!refused.is_transient(), "{refused:?}");
        copier.import(absent.clone(), vec![row]).await.expect_err("there is no such setting");
    }
    assert_eq!(load(&*store, name.id).await, None);
    assert_eq!(history(&*store, name.id).await, []);
    if let Some(store) = store.evidence() {
        // Its event is not known, so the first delivery decides which record it is about.
        let about = EvidenceSubject::Record(name.id);
        let delivered = Evidence { about: about.clone(), ..event.stored.evidence };
        let (stored, is_new) = store.insert_evidence(delivered, LONG).await.expect("it is stored");
        assert_eq!((stored.evidence.about, is_new), (about, true));
    }
}

/// An inserted record is like any other: it is loaded, found when it is due, changed at its version, and reaped.
pub async fn a_copied_record_lives_on(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let copier = copier(&*store);
    let now = copier.clock().await.expect("the clock is read");
    let (unknown, expired, stripped) = (TestRecord::fresh(), TestRecord::fresh(), TestRecord::fresh());
    let mut due_one = record(&unknown, State::Unknown, now);
    due_one.due_at = Some(now.before(Duration::from_secs(1)));
    let mut gone = record(&expired, State::Completed, now);
    (gone.expires_at, gone.purge_at) = (Some(now.before(LONG)), Some(now.before(SECOND)));
    let mut tombstone = record(&stripped, State::Completed, now);
    (tombstone.identity, tombstone.note) = (Arc::new(Identity::forgotten()), RecordDetails::default());
    tombstone.expires_at = Some(now.before(SECOND));
    let rows = vec![
        row(tombstone.clone(), None, vec![]),
        row(due_one.clone(), Some(SavedResponse::Plain(response(vec![7; 5000]))), vec![]),
        row(gone, None, vec![]),
        CopyRow::History(CopiedHistory { id: unknown.id, lines: lines(now) }),
    ];
    copier.import(fence(&*store).await, rows).await.expect("rows are inserted");
    let stored = load(&*store, unknown.id).await.expect("it is stored");
    assert_eq!((&*stored.record, stored.body()), (&due_one, Some(&[7; 5000][..])));
    let details: Vec<String> =
        history(&*store, unknown.id).await.into_iter().map(|line| line.detail).collect();
    let expected: &[&str] = if store.browse().is_some() { &["first", "second"] } else { &[] };
    assert_eq!(details, expected);
    // A store whose nodes have their own clocks judges later.
    subject.advance(super::TICK).await;
    let page = due(&*store, State::Unknown, 1000).await;
    assert!(page.iter().any(|stored| stored.record.id == unknown.id), "it is due");
    put(&*store, &replace(&stored.record, draft(&unknown, State::Unknown))).await;
    super::reap_all(&*store, ibid_core::reap::ReapTarget::Records).await;
    assert_eq!(load(&*store, expired.id).await, None, "its time was over");
    let stored = load(&*store, stripped.id).await.expect("its time is not over").record;
    assert_eq!(*stored, tombstone, "a tombstone is not stripped again");
}

/// Returns rows of every kind that the store can hold.
fn all_rows(store: &dyn Store, now: Timestamp) -> Vec<CopyRow> {
    let name = TestRecord::fresh;
    let sealed = SavedResponse::Sealed { key_id: "k1".into(), data: Bytes::from_static(b"sealed") };
    let small = SavedResponse::Plain(response(&b"small"[..]));
    let large = SavedResponse::Plain(response(vec![3; 70_000]));
    let mut with_note = record(&name(), State::Unknown, now);
    with_note.note = RecordDetails {
        last_error: Some(ErrorCode::TimedOut),
        absent_at: Some(now.as_micros()),
        phases: vec!["reserve \"é\" \\".to_owned()],
        ..with_note.note
    };
    with_note.version = Version { count: u32::MAX, nonce: Nonce(u64::MAX) };
    with_note.attempt = u32::MAX;
    let mut tombstone = record(&name(), State::Completed, now);
    tombstone.identity = Arc::new(Identity::forgotten());
    tombstone.note = RecordDetails::default();
    let mut accepted = record(&name(), State::Pending, now);
    accepted.flags = Flags { asynchronous: true, dead_letter: true, ..Flags::default() };
    accepted.due_at = Some(now);
    let request = vec![LoadedBody { kind: BodyKind::Request.code(), data: Bytes::from_static(b"\0request") }];
    let mut rows = vec![
        row(record(&name(), State::Completed, now), Some(small), vec![]),
        row(record(&name(), State::Completed, now), Some(large), vec![]),
        row(record(&name(), State::Completed, now), Some(sealed), vec![]),
        row(record(&name(), State::Retryable, now), None, vec![]),
        row(with_note, None, vec![]),
        row(tombstone, None, vec![]),
        row(accepted, None, if store.bodies().is_some() { request } else { vec![] }),
    ];
    if store.browse().is_some() {
        rows.push(CopyRow::History(CopiedHistory { id: name().id, lines: lines(now) }));
        rows.push(CopyRow::History(CopiedHistory { id: name().id, lines: lines(now.after(SECOND)) }));
    }
    if store.evidence().is_some() {
        rows.push(evidence(now, true));
        rows.push(evidence(now, false));
    }
    rows
}

fn record(name: &TestRecord, state: State, now: Timestamp) -> Record {
    Record {
        id: name.id,
        identity: name.identity.clone(),
        version: Version { count: 3, nonce: nonce() },
        birth: nonce(),
        owner: nonce(),
        attempt: 2,
        state,
        flags: Flags::default(),
        fingerprint: Some(fingerprint()),
        policy: Arc::new(Policy::default().with(|policy| policy.lease = LONG)),
        point: 4,
        created_at: now.before(LONG),
        ran_at: Some(now.before(SECOND)),
        completed_at: Some(now),
        due_at: None,
        expires_at: Some(now.after(LONG)),
        purge_at: Some(now.after(LONG * 2)),
        note: RecordDetails { status: Some(super::STATUS), ..RecordDetails::default() },
    }
}

/// Returns the fingerprint of some request.
fn fingerprint() -> Fingerprint {
    let policy = Arc::new(Policy::default());
    crate::story::ask("shop", "100 to ann", policy, nonce()).fingerprint
}

fn row(record: Record, response: Option<SavedResponse>, bodies: Vec<LoadedBody>) -> CopyRow {
    CopyRow::Record(Box::new(CopiedRecord { record: Arc::new(record), response, bodies }))
}

fn lines(at: Timestamp) -> Vec<CopiedLine> {
    let line = |detail: &str, at| CopiedLine {
        at,
        what: HistoryKind::Unknown.name().to_owned(),
        detail: detail.to_owned(),
    };
    // Two lines of one instant keep their order.
    vec![line("first", at), line("second", at)]
}

fn evidence(now: Timestamp, open: bool) -> CopyRow {
    let name = EventName { source: "provider".into(), event: format!("evt-{:x}", nonce().0) };
    let about = EvidenceSubject::Record(TestRecord::fresh().id);
    let what = Observation::NotExecuted;
    let evidence = Evidence { name, about, owner: Some(nonce()), what, age: Duration::ZERO };
    let stored = StoredEvidence { evidence, as_of: now.before(SECOND), open };
    CopyRow::Evidence(Box::new(CopiedEvidence { stored, purge_at: now.after(LONG) }))
}

/// Reads all rows in small pages.
async fn export_all(copier: &dyn CopyStore) -> Vec<CopyRow> {
    let mut rows = Vec::new();
    for part in [CopyPart::Records, CopyPart::History, CopyPart::Evidence] {
        let mut after: Option<Cursor> = None;
        let mut times: HashMap<RecordId, u32> = HashMap::new();
        loop {
            let page = copier.export(part, after, 7).await.expect("a page is read");
            assert!(page.items.len() <= 7);
            for row in &page.items {
                if let CopyRow::Record(row) = row {
                    *times.entry(row.record.id).or_default() += 1;
                }
            }
            rows.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert!(times.values().all(|count| *count == 1), "no record is on two pages");
    }
    rows
}

fn totals(rows: &[CopyRow]) -> RowTotals {
    let mut totals = RowTotals::default();
    rows.iter().for_each(|row| totals.add(row.digest()));
    totals
}

fn copier(store: &dyn Store) -> &dyn CopyStore {
    store.copy().expect("the suite runs on a store that can be copied")
}

/// Sets a new fence.
async fn fence(store: &dyn Store) -> SettingFence {
    let value = Bytes::from(nonce().0.to_string());
    let before = store.setting(FENCE).await.expect("a setting is read");
    let set = store.compare_and_set(FENCE, before, value.clone()).await.expect("a setting is written");
    assert_eq!(set, SetOutcome::Won);
    SettingFence { name: FENCE, value }
}

const FENCE: &str = "test fence";
const SECOND: Duration = Duration::from_secs(1);
