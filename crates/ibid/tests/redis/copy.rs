//! Rows of a copy on a server whose records change, whose slots move or whose replies are lost while they are read and written.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use ibid::store::redis::RedisStore;
use ibid_core::change::{Draft, HistoryKind};
use ibid_core::evidence::{EventName, Evidence, EvidenceStore, EvidenceSubject};
use ibid_core::machine::Observation;
use ibid_core::record::{Record, State};
use ibid_core::scope::RecordId;
use ibid_core::store::copy::{CopyPart, CopyRow, SettingFence};
use ibid_core::store::{CopyStore, Cursor, SetOutcome, Store};
use ibid_testkit::contract::{LONG, TestRecord, draft, finish_with, fresh, load, nonce, replace, telling};
use ibid_testkit::redis::{Redis, RedisCluster};

use super::faults::LossyProxy;
use super::{open, open_weak, put};

/// T1 (a copy) reads a page; T2 finishes and renews records of the same bucket, which moves them in the orders of the store; T1
/// reads the next page.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_changes_its_state_is_exported_once() {
    let server = Redis::start();
    let store = open(&server.url()).await;
    let mut running = Vec::new();
    for _ in 0..60 {
        running.push(put(&store, &fresh(&in_bucket(7), LONG)).await);
    }
    running.push(put(&store, &fresh(&in_bucket(250), LONG)).await);
    let expected: BTreeSet<RecordId> = running.iter().map(|record| record.id).collect();
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store.export(CopyPart::Records, after, 7).await.expect("a page is read");
        for row in page.items {
            let CopyRow::Record(row) = row else { panic!("a record") };
            let stored = load(&*store, row.record.id).await.expect("it is stored");
            assert_eq!(row.record, stored.record, "it is read as it is now");
            seen.push(row.record.id);
        }
        for record in running.drain(..running.len().min(9)) {
            match record.id.as_bytes()[1] % 2 {
                0 => drop(put(&store, &finish_with(&record, b"done")).await),
                _ => drop(store.renew(vec![(record.id, record.version)]).await.expect("it is renewed")),
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), expected.len(), "each once");
    assert_eq!(BTreeSet::from_iter(seen), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_sent_again_after_a_lost_reply_is_inserted_once() {
    let (source, target) = (Redis::start(), Redis::start());
    let rows = some_rows(&*open(&source.url()).await).await;
    let learnt = rows_of_each_kind(&rows);
    let rows: Vec<CopyRow> = rows.into_iter().filter(|row| !learnt.contains(row)).collect();
    let proxy = LossyProxy::start(target.port()).await;
    let store = open(&format!("redis://127.0.0.1:{}", proxy.port)).await;
    let fence = fence(&store).await;
    // The server learns the scripts.
    store.import(fence.clone(), learnt.clone()).await.expect("rows are inserted");
    let behind_proxy = open(&target.url()).await;
    for row in &rows {
        proxy.loses_replies.store(true, Ordering::SeqCst);
        let lost = store.import(fence.clone(), vec![row.clone()]).await.expect_err("the reply is lost");
        assert!(lost.is_transient() && !lost.is_unwritten(), "{lost:?}");
        proxy.loses_replies.store(false, Ordering::SeqCst);
        if let CopyRow::Record(row) = row {
            assert!(load(&*behind_proxy, row.record.id).await.is_some(), "it was inserted");
        }
        store.import(fence.clone(), vec![row.clone()]).await.expect("it is inserted");
    }
    assert_same(&export_all(&behind_proxy).await, &[learnt, rows].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_whose_slots_move_is_filled_and_read_whole() {
    let cluster = Arc::new(RedisCluster::start());
    let store = open_weak(&cluster.url()).await;
    let source = Redis::start();
    let rows = some_rows(&*open(&source.url()).await).await;
    let fence = fence(&store).await;
    let move_slots = |from, to| {
        let mover = cluster.clone();
        tokio::task::spawn_blocking(move || mover.reshard(from, to, 300))
    };
    let moves = move_slots(0, 1);
    for batch in rows.chunks(10) {
        // A slot may take longer to move than a script waits.
        while let Err(error) = store.import(fence.clone(), batch.to_vec()).await {
            assert!(error.is_transient(), "{error:?}");
        }
    }
    moves.await.expect("the slots move");
    let moves = move_slots(1, 2);
    assert_same(&export_all(&store).await, &rows);
    moves.await.expect("the slots move");
    assert_same(&export_all(&store).await, &rows);
}

/// T1 (a copy) tests its fence, and is stopped; T2 ends the copy; records and evidence of the cluster are used; T1 wakes up.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_batch_overwrites_nothing_in_a_cluster() {
    let (cluster, source) = (RedisCluster::start(), Redis::start());
    let rows = some_rows(&*open(&source.url()).await).await;
    let store = open_weak(&cluster.url()).await;
    let fence = fence(&store).await;
    store.import(fence.clone(), rows.clone()).await.expect("rows are stored");
    for row in &rows {
        match row {
            CopyRow::Record(row) => {
                let change = replace(&row.record, completed_draft(&row.record));
                put(&store, &telling(change, HistoryKind::Operator, "three")).await;
            }
            CopyRow::Evidence(row) => {
                let name = row.stored.evidence.name.clone();
                store.dismiss_evidence(vec![name]).await.expect("it is dismissed");
            }
            CopyRow::History(_) => {}
        }
    }
    let used = export_all(&store).await;
    store.import(fence, rows).await.expect("nothing is to be done");
    assert_same(&export_all(&store).await, &used);
}

/// Returns the content of the record after another write.
fn completed_draft(record: &Record) -> Draft {
    let name = TestRecord { id: record.id, identity: record.identity.clone() };
    draft(&name, State::Completed)
}

/// Writes records of all buckets, with history and evidence, and returns them as rows.
async fn some_rows(store: &RedisStore) -> Vec<CopyRow> {
    for bucket in (0..=255).step_by(8) {
        let running = put(store, &fresh(&in_bucket(bucket), LONG)).await;
        let body: &'static [u8] = if bucket % 16 == 0 { b"small" } else { &[3; 5000] };
        let finish = telling(finish_with(&running, body), HistoryKind::Operator, "one");
        put(store, &telling(finish, HistoryKind::Operator, "two")).await;
        let name = EventName { source: "psp".into(), event: format!("event-{bucket}") };
        let (about, what) = (EvidenceSubject::Record(running.id), Observation::NotExecuted);
        let one = Evidence { name, about, owner: None, what, age: Duration::from_secs(1) };
        store.insert_evidence(one, LONG).await.expect("it is stored");
    }
    let rows = export_all(store).await;
    assert_eq!(rows.len(), 3 * 32);
    rows
}

/// Returns the first row of each kind.
fn rows_of_each_kind(rows: &[CopyRow]) -> Vec<CopyRow> {
    let mut kinds: Vec<CopyRow> = Vec::new();
    for row in rows {
        if !kinds.iter().any(|known| std::mem::discriminant(known) == std::mem::discriminant(row)) {
            kinds.push(row.clone());
        }
    }
    assert_eq!(kinds.len(), 3);
    kinds
}

async fn export_all(store: &RedisStore) -> Vec<CopyRow> {
    let mut rows = Vec::new();
    for part in [CopyPart::Records, CopyPart::History, CopyPart::Evidence] {
        let mut after: Option<Cursor> = None;
        loop {
            match store.export(part, after.clone(), 5).await {
                Ok(page) => {
                    rows.extend(page.items);
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
                // A slot moves.
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
        }
    }
    rows
}

#[track_caller]
fn assert_same(found: &[CopyRow], expected: &[CopyRow]) {
    assert_eq!(found.len(), expected.len(), "each row once");
    for row in expected {
        assert!(found.contains(row), "{row:#?}");
    }
}

/// Makes a record in one of the 256 buckets.
fn in_bucket(bucket: u8) -> TestRecord {
    let name = TestRecord::fresh();
    let mut id = *name.id.as_bytes();
    id[0] = bucket;
    TestRecord { id: RecordId::from_bytes(id), ..name }
}

/// Sets a fence.
async fn fence(store: &RedisStore) -> SettingFence {
    let value = Bytes::from(nonce().0.to_string());
    let set = store.compare_and_set(FENCE, None, value.clone()).await.expect("a setting is written");
    assert_eq!(set, SetOutcome::Won);
    SettingFence { name: FENCE, value }
}

const FENCE: &str = "test fence";
