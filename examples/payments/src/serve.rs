//! `payments serve`: API, worker and upkeep on one database.

use std::time::Duration;

use axum::Router;
use futures_util::FutureExt as _;
use ibid::identity::StoreIdentity;
use ibid::outbox::Worker;
use ibid::transaction::sqlx_postgres::SqlxPostgres;
use ibid::transaction::sqlx_sqlite::SqlxSqlite;
use ibid::upkeep::{self, Schedule};
use ibid::{Ibid, Settings};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::account::Authentication;
use crate::api::App;
use crate::args::ServeArgs;
use crate::charge::{ChargePayment, Charger};
use crate::db::{Backend, Db};
use crate::listen::{self, Failure, Running};
use crate::provider_client::{ANSWER_WITHIN, ProviderClient};
use crate::{api, store};

/// Starts it. From `stop` on it takes nothing more, and ends what it has.
pub async fn start(
    args: ServeArgs,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<Running, Failure> {
    // In this order: our tables refer to the store's.
    let store = store::open(&args.store).await?;
    let db = Db::connect(&args.store).await?;
    db.make_tables().await?;
    let identity = StoreIdentity::new("the account of the bearer token");
    let ibid = Ibid::start(store, Settings { identity, ..Settings::default() }).await?;
    tracing::info!(store = ?args.store, provider = %args.provider.uri(), lease = ?args.lease, "ready");
    // An application with one database has one of these lines.
    match &db {
        Db::Postgres(pool) => on(SqlxPostgres(pool.clone()), db.clone(), ibid, args, stop).await,
        Db::Sqlite(pool) => on(SqlxSqlite(pool.clone()), db.clone(), ibid, args, stop).await,
    }
}

async fn on<D: Backend>(
    database: D,
    db: Db,
    ibid: Ibid,
    args: ServeArgs,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<Running, Failure> {
    // A claim is renewed by nobody, so all that is done under it must fit: two calls and the writing of their end.
    let call_within = ANSWER_WITHIN.min(args.lease / 3);
    let charger = Charger { provider: ProviderClient::new(args.provider.clone(), call_within) };
    let worker = Worker::builder(ibid.clone(), database.clone())
        .on(ChargePayment::KIND, charger)
        .timeout(args.lease * 3 / 4)
        .lease(args.lease)
        .poll_every(args.poll_every)
        .stop_within(STOP_WITHIN)
        .build()?;
    let app = App {
        db: db.clone(),
        database,
        in_doubt: args.in_doubt(),
        patient_provider: ProviderClient::new(args.provider, ANSWER_WITHIN),
        lease: args.lease,
    };
    let router = api::router(app, ibid.clone(), authentication(args.accounts), args.hook_secret)?;
    let (listener, address) = listen::bind(args.listen).await?;

    let stop = stop.boxed().shared();
    let until = stop.clone();
    let worker = tokio::spawn(async move { worker.run_until(until).await });
    let schedule = Schedule { sweep_every: args.sweep_every, ..Schedule::default() };
    let (chores, until) = (upkeep::run(ibid.clone(), schedule), stop.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = chores => {}
            () = until => {}
        }
    });
    let served = serve(listener, router, ibid, worker, stop.clone());
    Ok(Running::new(address, async move {
        let late = async {
            stop.await;
            tokio::time::sleep(STOP_WITHIN).await;
        };
        tokio::select! {
            served = served => served?,
            // What is cut off lapses, and goes on elsewhere or here after the next start.
            () = late => tracing::warn!("some work did not end in time and is cut off"),
        }
        // What still holds a connection was cut off above, and must not hold us.
        let _ = tokio::time::timeout(CLOSE_FOR, db.close()).await;
        Ok(())
    }))
}

async fn serve(
    listener: TcpListener,
    router: Router,
    ibid: Ibid,
    worker: JoinHandle<()>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Failure> {
    // Takes nothing more, and answers what it has.
    axum::serve(listener, router).with_graceful_shutdown(stop).await?;
    // Attempts go on without their clients; those that the sweeper runs never had one.
    ibid.settled().await;
    worker.await.map_err(Failure::from)
}

fn authentication(accounts: Option<crate::account::Accounts>) -> Authentication {
    match accounts {
        Some(accounts) => Authentication::Listed(accounts),
        None => {
            tracing::warn!("no --accounts: each token is an account of its own, which is for trying out");
            Authentication::AnyToken
        }
    }
}

/// A charge that has just begun may take [`ANSWER_WITHIN`], and its end some more; whoever stops nodes waits 30 seconds
/// before it kills them.
const STOP_WITHIN: Duration = Duration::from_secs(25);

/// Saying goodbye to a database that is gone is not worth more.
const CLOSE_FOR: Duration = Duration::from_secs(2);
