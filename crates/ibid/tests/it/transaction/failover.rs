//! The primary is killed and its synchronous standby takes over: every acknowledged transaction is there, with its rows,
//! although the caller's sessions do not wait for any disk.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ibid::outcome::{Begin, Outcome};
use ibid::transaction::tokio_postgres::TokioPostgres;
use ibid::transaction::{Database, TxError};
use ibid_testkit::postgres::PostgresPair;
use tokio::task::{JoinSet, block_in_place};

use super::harness::{NodeOnDatabase, answer, pay, until};
use crate::adapters::databases::{TestDatabase, TokioPostgresPools};
use crate::adapters::{Adapter, PATIENT};

struct Load {
    world: NodeOnDatabase<TokioPostgresPools>,
    /// The pool of the application.
    app: TokioPostgres,
    acknowledged: Mutex<Vec<String>>,
    over: AtomicBool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_synchronous_failover_loses_no_caller_commit() {
    let mut pair = block_in_place(PostgresPair::synchronous);
    let at = format!("{}?target_session_attrs=read-write", pair.url_for("postgres"));
    let world = NodeOnDatabase::new(TestDatabase::at(at.clone())).await;
    let careless = TestDatabase::at(format!("{at}&options=-c%20synchronous_commit%3Doff"));
    let app = TokioPostgresPools::open(&careless, CALLERS, PATIENT).await;
    let load = Arc::new(Load { world, app, acknowledged: Mutex::default(), over: AtomicBool::new(false) });
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        callers.spawn(load.clone().pay(caller));
    }
    load.more(100).await;
    block_in_place(|| pair.fail_over());
    load.more(100).await;
    load.over.store(true, Ordering::SeqCst);
    while let Some(ended) = callers.join_next().await {
        ended.expect("no caller panics");
    }

    // Another process, with an empty cache.
    let other = load.world.other_node().await;
    let acknowledged = std::mem::take(&mut *load.acknowledged.lock().unwrap());
    for key in &acknowledged {
        match other.begin(load.world.ask(key)).await {
            Ok(Begin::Skip(Outcome::Completed(kept))) => {
                assert_eq!(*kept.response, answer(201), "the answer of `{key}`")
            }
            begun => panic!("`{key}` was acknowledged, and now it is {begun:?}"),
        }
        assert_eq!(load.world.payments(key).await, 1, "`{key}` is paid once");
    }
    let alone = "select count(*) from payment p where not exists
                   (select 1 from ibid_record r where r.key = p.key and r.completed_at is not null)";
    assert_eq!(load.world.number(alone).await, 0, "no payment without a response");
}

impl Load {
    /// Pays under one key after another, whatever happens to the server.
    async fn pay(self: Arc<Load>, caller: usize) {
        for n in 0.. {
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            let key = format!("{caller}-{n}");
            let paid = match caller % 2 {
                0 => self.reserved_first(&key).await,
                _ => self.all_inside(&key).await,
            };
            match paid {
                Ok(Outcome::Completed(_)) => self.acknowledged.lock().unwrap().push(key),
                Ok(other) => panic!("`{key}` was finished by this caller only, and is {other:?}"),
                // The server is down. An immediate retry would only add load.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn reserved_first(&self, key: &str) -> Result<Outcome, TxError> {
        let outcome = self.world.ibid.begin(self.world.ask(key)).await?;
        let Begin::Run(mut attempt) = outcome else { panic!("a fresh key `{key}` is {outcome:?}") };
        let mut inside = attempt.join_tx(self.app.begin().await?).await?;
        pay(&mut *inside, key, "app").await?;
        inside.finish(answer(201)).await
    }

    async fn all_inside(&self, key: &str) -> Result<Outcome, TxError> {
        let outcome = self.world.ibid.begin_inside(self.world.ask(key), &self.app, PATIENT).await?;
        let Begin::Run(mut inside) = outcome else { panic!("a fresh key `{key}` is {outcome:?}") };
        pay(&mut **inside, key, "app").await?;
        inside.finish(answer(201)).await
    }

    /// Waits until `by` more payments were acknowledged.
    async fn more(&self, by: usize) {
        let target = self.acknowledged.lock().unwrap().len() + by;
        until(async || self.acknowledged.lock().unwrap().len() >= target).await;
    }
}

const CALLERS: usize = 8;
