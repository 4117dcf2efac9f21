//! Evidence about an effect on two nodes: one that has no connection for the handler's rows leaves it to the other.

use std::sync::Arc;
use std::time::Duration;

use ibid::outbox::Worker;
use ibid::transaction::rusqlite::RusqliteTx;
use ibid::transaction::{Database, SqlError};
use ibid::upkeep::{self, Schedule};
use ibid_core::evidence::{EffectRef, Evidence, EvidenceSubject};
use ibid_core::machine::EffectState::Done;
use tokio::sync::Notify;

use super::every_database::{charge, executed_observation, lost, name};
use super::harness::{NodeOnSqlite, Provider};

/// A database whose connections are all in use.
struct StarvedDatabase {
    asked: Arc<Notify>,
}

impl Database for StarvedDatabase {
    type Tx = RusqliteTx;

    async fn begin(&self) -> Result<RusqliteTx, SqlError> {
        self.asked.notify_one();
        std::future::pending().await
    }
}

#[tokio::test]
async fn another_node_applies_what_one_has_no_connection_for() {
    let world = NodeOnSqlite::new().await;
    world.pay("k", [charge()]).await;
    let provider = Provider::new("w", |_| lost());
    assert_eq!(world.worker(&provider).run_once().await.unwrap().dead, 1);
    let about = EvidenceSubject::Effect(EffectRef::DownstreamKey(world.only_effect().await.downstream_key));
    let what = executed_observation(201, "ch_9");
    let evidence = Evidence { name: name("evt_1"), about, owner: None, what, age: Duration::ZERO };
    world
        .ibid
        .store()
        .evidence()
        .unwrap()
        .insert_evidence(evidence, Duration::from_secs(3600))
        .await
        .unwrap();

    let asked = Arc::new(Notify::new());
    let starved = Worker::builder(world.ibid.clone(), StarvedDatabase { asked: asked.clone() });
    let _starved = starved.on("charge", provider.clone()).build().unwrap();
    let schedule = Schedule::default().with(|schedule| {
        schedule.sweep_every = Duration::from_secs(1);
        schedule.reconcile_every = Duration::from_secs(1);
    });
    let first = tokio::spawn(upkeep::run(world.ibid.clone(), schedule));
    asked.notified().await;
    let other = world.another_process().await;
    let _worker = other.worker(&provider);
    let second = tokio::spawn(upkeep::run(other.ibid.clone(), schedule));
    let applied = async {
        let mut look = tokio::time::interval(Duration::from_millis(20));
        while world.only_effect().await.state != Done {
            look.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), applied).await.expect("the other node applies it");
    assert!(!first.is_finished() && !second.is_finished());
    first.abort();
    second.abort();
}
