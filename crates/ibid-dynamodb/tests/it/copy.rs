//! Rows of a copy: a batch that is late overwrites nothing, and parts of bodies go with their records.

use bytes::Bytes;
use ibid_core::change::{Change, Draft, HistoryKind};
use ibid_core::evidence::{EventName, Evidence, EvidenceStore, EvidenceSubject};
use ibid_core::machine::Observation;
use ibid_core::record::State;
use ibid_core::store::copy::{CopyPart, CopyRow, SettingFence};
use ibid_core::store::{CopyStore, Cursor, SetOutcome, Store};
use ibid_dynamodb::{DynamoStore, NodeClock};
use ibid_testkit::contract::{LONG, TestRecord, draft, insert, put, replace, response, telling};
use ibid_testkit::dynamodb::DynamoDb;

use crate::bodies::{LARGE, part_count};
use crate::fixture::{items, number, open, open_with, options, sdk_config};

/// T1 (a copy) tests its fence, and is stopped; T2 ends the copy; a record and its evidence are used; T1 wakes up.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_batch_overwrites_nothing_and_leaves_no_parts() {
    let server = DynamoDb::shared();
    let target = open(&server, &NodeClock::default()).await;
    let source = open_other(&server).await;
    let name = TestRecord::fresh();
    let answering = |change: Change, byte: u8| {
        let change = telling(change, HistoryKind::Operator, "it was written");
        Change { response: Some(response(vec![byte; LARGE])), ..change }
    };
    let first = put(&source, &answering(insert(&name, completed_draft(&name)), b'a')).await;
    source.insert_evidence(evidence(name.id), LONG).await.expect("it is stored");
    let early = export_all(&source).await;
    put(&source, &answering(replace(&first.record, completed_draft(&name)), b'b')).await;
    source.dismiss_evidence(vec![evidence(name.id).name]).await.expect("it is dismissed");
    let late = export_all(&source).await;
    assert_ne!(early, late);

    let fence = fence(&target).await;
    for rows in [&early, &late, &early] {
        target.import(fence.clone(), rows.clone()).await.expect("rows are stored");
        assert_eq!(part_count(&server).await, 4, "only those of the stored response");
    }
    let stored = export_all(&target).await;
    assert_eq!(stored, late, "the earlier version does not come back");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_parts_of_a_copied_record_have_a_time_to_live() {
    let server = DynamoDb::shared();
    let target = open(&server, &NodeClock::default()).await;
    let source = open_other(&server).await;
    let name = TestRecord::fresh();
    let ending =
        Change { response: Some(response(vec![b'a'; LARGE])), ..insert(&name, completed_draft(&name)) };
    let purge = put(&source, &ending).await.record.purge_at.expect("it ends").as_secs();
    target.import(fence(&target).await, export_all(&source).await).await.expect("rows are stored");
    let parts = items(&server, "b#").await;
    let ttls: Vec<Option<i64>> = parts.iter().map(|part| number(part, "ttl_s")).collect();
    assert_eq!(ttls, [Some(purge + 25 * 3600); 4], "a day after the record may go");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_parts_of_a_copied_dead_letter_have_no_time_to_live() {
    let server = DynamoDb::shared();
    let target = open(&server, &NodeClock::default()).await;
    let source = open_other(&server).await;
    let name = TestRecord::fresh();
    let mut letter = completed_draft(&name);
    letter.flags.dead_letter = true;
    put(&source, &Change { response: Some(response(vec![b'a'; LARGE])), ..insert(&name, letter) }).await;
    target.import(fence(&target).await, export_all(&source).await).await.expect("rows are stored");
    let parts = items(&server, "b#").await;
    let ttls: Vec<Option<i64>> = parts.iter().map(|part| number(part, "ttl_s")).collect();
    assert_eq!(ttls, [None; 4], "it stays until an operator has seen it");
}

fn completed_draft(name: &TestRecord) -> Draft {
    let mut draft = Draft { purge_in: Some(LONG), ..draft(name, State::Completed) };
    draft.note.status = Some(201);
    draft
}

fn evidence(id: ibid_core::scope::RecordId) -> Evidence {
    let name = EventName { source: "psp".into(), event: "1".into() };
    let about = EvidenceSubject::Record(id);
    Evidence { name, about, owner: None, what: Observation::NotExecuted, age: Default::default() }
}

/// Opens a store on another table of the server.
async fn open_other(server: &DynamoDb) -> DynamoStore {
    let mut options = options(&NodeClock::default());
    options.table = "other".to_owned();
    open_with(&sdk_config(server), options).await
}

async fn export_all(store: &DynamoStore) -> Vec<CopyRow> {
    let mut rows = Vec::new();
    for part in [CopyPart::Records, CopyPart::History, CopyPart::Evidence] {
        let mut after: Option<Cursor> = None;
        loop {
            let page = store.export(part, after, 10).await.expect("a page is read");
            rows.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    rows
}

async fn fence(store: &DynamoStore) -> SettingFence {
    let (name, value) = ("test fence", Bytes::from_static(b"held"));
    let set = store.compare_and_set(name, None, value.clone()).await.expect("a setting is written");
    assert_eq!(set, SetOutcome::Won);
    SettingFence { name, value }
}
