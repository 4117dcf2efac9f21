//! Serialization conflicts in a phase, on PostgreSQL.

use std::sync::atomic::{AtomicU32, Ordering};

use ibid::phase::PhaseError;
use ibid::transaction::{Database, IsolatedDatabase, Isolation, OwnedTx, TxError};
use tokio::sync::Mutex;

use super::policy;
use crate::adapters::databases::{TestDatabase, TokioPostgresPools};
use crate::adapters::{Adapter, PATIENT, number};
use crate::transaction::harness::{NodeOnDatabase, pay};

/// In each run a rival reads what the phase writes, writes what it reads, and commits first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phase_is_retried_after_a_serialization_failure() {
    let world = NodeOnDatabase::<TokioPostgresPools>::under(policy(), TestDatabase::postgres()).await;
    let pool = TokioPostgresPools::open(&world.test_db, 4, PATIENT).await;
    let isolated = IsolatedDatabase::new(pool, Isolation::Serializable);
    // Number of rivals, and how often the work runs then.
    for (rivals, runs) in [(2, Some(3)), (1000, None)] {
        let key = format!("{rivals} rivals");
        let (ran, left) = (AtomicU32::new(0), Mutex::new(rivals));
        let mut attempt = world.begin(&key).await;
        let phase: Result<u32, PhaseError<TxError>> = attempt
            .phase("ride", &isolated, async |mut inside| {
                let run = ran.fetch_add(1, Ordering::SeqCst) + 1;
                number(&mut *inside, "select count(*) from payment").await;
                pay(&mut *inside, &key, "ann").await?;
                let mut left = left.lock().await;
                if *left > 0 {
                    *left -= 1;
                    let mut rival = isolated.begin().await?;
                    number(&mut rival, "select count(*) from payment").await;
                    pay(&mut rival, "rival", "bob").await?;
                    rival.commit().await?;
                }
                Ok(run)
            })
            .await;
        match runs {
            Some(runs) => {
                assert_eq!(phase.unwrap(), runs);
                assert_eq!((world.payments(&key).await, world.record(&key).await.unwrap().point), (1, 1));
            }
            None => {
                assert!(matches!(&phase, Err(PhaseError::Tx(error)) if error.is_retryable()), "{phase:?}");
                assert!(ran.load(Ordering::SeqCst) < 1000, "it gave up");
                assert_eq!((world.payments(&key).await, world.record(&key).await.unwrap().point), (0, 0));
            }
        }
    }
}
