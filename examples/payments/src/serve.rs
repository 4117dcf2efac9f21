//! Starts API, worker and upkeep in one process, and stops them.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::FutureExt as _;
use ibid::identity::StoreIdentity;
use ibid::prelude::*;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::api::{self, App};
use crate::config::Config;
use crate::db::{Db, on_database};
use crate::processor::{CHARGE_WITHIN, ProcessorClient};
use crate::worker::{CHARGE, Charger};

/// A running server: API, worker and upkeep.
#[derive(Debug)]
pub struct Server {
    /// Address that the API listens on, with the port that was chosen for port 0.
    pub address: SocketAddr,
    /// Completes when everything has stopped and the database is closed.
    pub ended: JoinHandle<Result<(), BoxError>>,
}

/// Starts the server. Once `stop` completes, it accepts no more requests and finishes the running ones, for at most
/// `STOP_WITHIN`.
pub async fn start(
    config: Config,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<Server, BoxError> {
    let (store, db) = Db::open(&config.store).await?;
    let identity = StoreIdentity::new("the account of the bearer token");
    let ibid = Ibid::start(store, Settings::default().with(|settings| settings.identity = identity)).await?;
    let listener = TcpListener::bind(config.listen).await;
    let listener = listener.map_err(|error| format!("cannot listen on `{}`: {error}", config.listen))?;
    let address = listener.local_addr()?;
    tracing::info!(provider = %config.provider, lease = ?config.lease, "ready");
    if config.accounts.is_none() {
        tracing::warn!("no --accounts: each token is a separate account; use this for trials only");
    }

    let stop = stop.boxed().shared();
    let app = App {
        db: db.clone(),
        processor: ProcessorClient::new(&config.provider, CHARGE_WITHIN),
        charge_rules: config.charge_rules(),
    };
    let worker = start_worker(&ibid, &db, &config, stop.clone())?;
    let router = api::router(app, ibid.clone(), config.accounts, config.hook_secret)?;
    let serving = axum::serve(listener, router).with_graceful_shutdown(stop.clone());
    let serving = tokio::spawn(serving.into_future());
    let schedule = upkeep::Schedule::default().with(|schedule| schedule.sweep_every = config.sweep_every);
    let chores = tokio::spawn(upkeep::run(ibid.clone(), schedule));

    let ended = async move {
        stop.await;
        chores.abort();
        let finish = async {
            serving.await??;
            // Attempts outlive their connections, and those that the sweeper resumed never had one. So the end of the
            // HTTP server is not yet the end of the work.
            ibid.settled().await;
            worker.await?;
            Ok::<_, BoxError>(())
        };
        match timeout(STOP_WITHIN, finish).await {
            Ok(finished) => finished?,
            // Safe: the leases of aborted work lapse, and another node, or this one after a restart, resumes it.
            Err(_) => tracing::warn!("shutdown timed out; unfinished work is aborted and resumed later"),
        }
        // Aborted work may still hold connections, so this wait is bounded, too.
        let _ = timeout(CLOSE_WITHIN, db.close()).await;
        Ok(())
    };
    Ok(Server { address, ended: tokio::spawn(ended) })
}

/// Starts the worker that charges payments.
fn start_worker(
    ibid: &Ibid,
    db: &Db,
    config: &Config,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<JoinHandle<()>, BoxError> {
    // The worker does not renew the lease of a claimed effect. A charge makes up to two calls (the charge, and a lookup
    // after a refusal); both and the write of the result must fit into the lease.
    let call_within = CHARGE_WITHIN.min(config.lease / 3);
    let processor = ProcessorClient::new(&config.provider, call_within);
    let charger = Charger { processor, db: db.clone() };
    Ok(on_database!(db, |database| {
        let worker = Worker::builder(ibid.clone(), database.clone())
            .on(CHARGE, charger)
            .timeout(config.lease * 3 / 4)
            .lease(config.lease)
            .poll_every(config.poll_every)
            .stop_within(STOP_WITHIN)
            .build()?;
        tokio::spawn(async move { worker.run_until(stop).await })
    }))
}

/// Upper bound for finishing running work at shutdown.
///
/// A charge that has just begun may take [`CHARGE_WITHIN`] (20 s), and its result must still be written. Orchestrators
/// usually kill a process 30 seconds after SIGTERM, so 25 leave some room on both sides.
const STOP_WITHIN: Duration = Duration::from_secs(25);

/// Upper bound for closing the pool. All work has ended or was aborted by then, so a database that does not answer is not
/// worth a longer wait.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
