//! Evidence about a record that can't be read, on a real SQLite file.

use std::time::Duration;

use ibid::{Ibid, upkeep};
use ibid_core::evidence::{EventName, Evidence, EvidenceStore, EvidenceSubject};
use ibid_core::machine::{AttemptResponse, Observation};
use ibid_core::record::State;
use ibid_testkit::contract::{TestRecord, draft, insert, load, put};

use crate::store_sqlite::{Sqlite, sql, sqlite};

#[tokio::test]
async fn evidence_about_an_unreadable_record_holds_up_no_other() {
    let Sqlite { store, file, .. } = sqlite();
    let mut ids = Vec::new();
    for event in ["first", "second"] {
        let name = TestRecord::fresh();
        let record = put(&*store, &insert(&name, draft(&name, State::Unknown))).await.record;
        let answer =
            AttemptResponse { status: 201, retry_after: false, kept: None, provider_id: None, proof: None };
        let evidence = Evidence {
            name: EventName { source: "psp".into(), event: event.into() },
            about: EvidenceSubject::Record(name.id),
            owner: Some(record.owner),
            what: Observation::Executed(answer),
            age: Duration::ZERO,
        };
        store.insert_evidence(evidence, Duration::from_secs(3600)).await.expect("stored");
        ids.push(name.id);
    }
    sql(&file.path(), &format!("update ibid_record set policy = 99 where id = x'{}'", ids[0]));
    let node = Ibid::for_upkeep(store.clone());
    assert_eq!(upkeep::apply_evidence_once(&node).await.expect("a round"), 1);
    assert_eq!(load(&*store, ids[1]).await.expect("it is there").record.state, State::Completed);
}
