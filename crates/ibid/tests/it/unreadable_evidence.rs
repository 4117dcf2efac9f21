//! Evidence that can't be read, and evidence about a record that can't be read, on a real SQLite file.

use crate::request_fixture::takes_over_at_start;
use std::time::Duration;

use ibid::{Ibid, upkeep};
use ibid_core::evidence::{EventName, Evidence, EvidenceQuery, EvidenceStore, EvidenceSubject};
use ibid_core::machine::{AttemptResponse, Observation};
use ibid_core::record::State;
use ibid_core::scope::RecordId;
use ibid_core::store::Store;
use ibid_testkit::contract::{TestRecord, draft, insert, put};

use crate::store_sqlite::{Sqlite, sql, sqlite};

#[tokio::test]
async fn evidence_about_an_unreadable_record_holds_up_no_other() {
    let (sqlite, ids) = two_unknown_records_with_evidence().await;
    sql(&sqlite.file.path(), &format!("update ibid_record set policy = 99 where id = x'{}'", ids[0]));
    settles_the_second(&sqlite, ids).await;
}

#[tokio::test]
async fn unreadable_evidence_holds_up_no_other() {
    let (sqlite, ids) = two_unknown_records_with_evidence().await;
    sql(&sqlite.file.path(), "update ibid_evidence set found = x'ff' where event = 'first'");
    settles_the_second(&sqlite, ids).await;
    let page = sqlite.store.open_evidence(EvidenceQuery::Of(ids[0]), None, 10).await.expect("a page");
    assert!(page.items.is_empty() && page.next.is_none());
}

async fn two_unknown_records_with_evidence() -> (Sqlite, [RecordId; 2]) {
    let sqlite = sqlite();
    let mut ids = Vec::new();
    for event in ["first", "second"] {
        let name = TestRecord::fresh();
        let record = put(&*sqlite.store, &insert(&name, draft(&name, State::Unknown))).await.record;
        let answer =
            AttemptResponse { status: 201, retry_after: false, kept: None, provider_id: None, proof: None };
        let evidence = Evidence {
            name: EventName { source: "psp".into(), event: event.into() },
            about: EvidenceSubject::Record(name.id),
            owner: Some(record.owner),
            what: Observation::Executed(answer),
            age: Duration::ZERO,
        };
        sqlite.store.insert_evidence(evidence, Duration::from_secs(3600)).await.expect("stored");
        ids.push(name.id);
    }
    (sqlite, [ids[0], ids[1]])
}

async fn settles_the_second(sqlite: &Sqlite, [first, second]: [RecordId; 2]) {
    let node = Ibid::for_upkeep(sqlite.store.clone(), takes_over_at_start());
    assert_eq!(upkeep::apply_evidence_once(&node).await.expect("a round"), 1);
    let state =
        async |id| sqlite.store.load(id).await.map(|stored| stored.expect("it is there").record.state);
    assert_eq!(state(second).await.expect("it is read"), State::Completed);
    assert_ne!(state(first).await.ok(), Some(State::Completed));
}
