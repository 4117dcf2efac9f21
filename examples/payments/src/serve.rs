//! Starts API, worker and upkeep in one process, and stops them.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::FutureExt as _;
use ibid::identity::StoreIdentity;
use ibid::outbox::Worker;
#[cfg(feature = "postgres")]
use ibid::transaction::sqlx_postgres::SqlxPostgres;
use ibid::transaction::sqlx_sqlite::SqlxSqlite;
use ibid::upkeep::{self, Schedule};
use ibid::{Ibid, Settings};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::api::{self, App};
use crate::config::Config;
use crate::db::{Backend, Db};
use crate::processor::{CHARGE_WITHIN, ProcessorClient};
use crate::worker::{ChargePayment, Charger};

/// Any error that ends the program.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A running server: API, worker and upkeep.
#[derive(Debug)]
pub struct Server {
    /// Address that the API listens on, with the port that was chosen for port 0.
    pub address: SocketAddr,
    /// Completes when everything has stopped and the database is closed.
    pub ended: JoinHandle<Result<(), Failure>>,
}

/// Starts the server. Once `stop` completes, it accepts no more requests and finishes the running ones, for at most
/// `STOP_WITHIN`.
pub async fn start(
    config: Config,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<Server, Failure> {
    let (store, db) = Db::open(&config.store).await?;
    let identity = StoreIdentity::new("the account of the bearer token");
    let ibid = Ibid::start(store, Settings::default().with(|settings| settings.identity = identity)).await?;
    tracing::info!(provider = %config.provider, lease = ?config.lease, "ready");
    match &db {
        #[cfg(feature = "postgres")]
        Db::Postgres(pool) => start_on(SqlxPostgres(pool.clone()), db.clone(), ibid, config, stop).await,
        Db::Sqlite(pool) => start_on(SqlxSqlite(pool.clone()), db.clone(), ibid, config, stop).await,
    }
}

async fn start_on<D: Backend>(
    database: D,
    db: Db,
    ibid: Ibid,
    config: Config,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<Server, Failure> {
    let worker = worker(&ibid, &database, &config)?;
    let app = App {
        db: db.clone(),
        database,
        in_doubt: config.in_doubt(),
        processor: ProcessorClient::new(&config.provider, CHARGE_WITHIN),
        lease: config.lease,
    };
    if config.accounts.is_none() {
        tracing::warn!("no --accounts: each token is a separate account; use this for trials only");
    }
    let router = api::router(app, ibid.clone(), config.accounts, config.hook_secret)?;
    let listener = TcpListener::bind(config.listen).await;
    let listener = listener.map_err(|error| format!("cannot listen on `{}`: {error}", config.listen))?;
    let address = listener.local_addr()?;

    let stop = stop.boxed().shared();
    let worker = tokio::spawn({
        let stop = stop.clone();
        async move { worker.run_until(stop).await }
    });
    let schedule = Schedule::default().with(|schedule| schedule.sweep_every = config.sweep_every);
    let (chores, stopped) = (upkeep::run(ibid.clone(), schedule), stop.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = chores => {}
            () = stopped => {}
        }
    });
    let deadline = {
        let stop = stop.clone();
        async move {
            stop.await;
            tokio::time::sleep(STOP_WITHIN).await;
        }
    };
    let ended = async move {
        let serving = async {
            axum::serve(listener, router).with_graceful_shutdown(stop).await?;
            // Attempts outlive their connections, and those that the sweeper resumed never had one. So the end of the
            // HTTP server is not yet the end of the work.
            ibid.settled().await;
            worker.await.map_err(Failure::from)
        };
        tokio::select! {
            served = serving => served?,
            // Safe: the leases of aborted work lapse, and another node, or this one after a restart, resumes it.
            () = deadline => tracing::warn!("shutdown timed out; unfinished work is aborted and resumed later"),
        }
        // Aborted work may still hold connections, so this wait is bounded, too.
        let _ = tokio::time::timeout(CLOSE_WITHIN, db.close()).await;
        Ok(())
    };
    Ok(Server { address, ended: tokio::spawn(ended) })
}

/// Builds the worker that charges payments.
fn worker<D: Backend>(ibid: &Ibid, database: &D, config: &Config) -> Result<Worker<D>, Failure> {
    // The worker does not renew the lease of a claimed effect. A charge makes up to two calls (the charge, and a lookup
    // after a refusal); both and the write of the result must fit into the lease.
    let call_within = CHARGE_WITHIN.min(config.lease / 3);
    let charger = Charger { processor: ProcessorClient::new(&config.provider, call_within) };
    let worker = Worker::builder(ibid.clone(), database.clone())
        .on(ChargePayment::KIND, charger)
        .timeout(config.lease * 3 / 4)
        .lease(config.lease)
        .poll_every(config.poll_every)
        .stop_within(STOP_WITHIN);
    Ok(worker.build()?)
}

/// Upper bound for finishing running work at shutdown.
///
/// A charge that has just begun may take [`CHARGE_WITHIN`] (20 s), and its result must still be written. Orchestrators
/// usually kill a process 30 seconds after SIGTERM, so 25 leave some room on both sides.
const STOP_WITHIN: Duration = Duration::from_secs(25);

/// Upper bound for closing the pool. All work has ended or was aborted by then, so a database that does not answer is not
/// worth a longer wait.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
