//! `payments serve`: the API on one database, until the process is told to stop.

use std::error::Error;
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::account::Authentication;
use crate::args::ServeArgs;
use crate::db::Db;
use crate::{api, listen};

/// Runs until the process is told to stop; requests that are under way then are answered first.
pub async fn run(args: ServeArgs) -> Result<(), Box<dyn Error + Send + Sync>> {
    let stop = listen::stop_signal()?;
    let authentication = match args.accounts {
        Some(accounts) => Authentication::Listed(accounts),
        None => {
            tracing::warn!("no --accounts: each token is an account of its own, which is for trying out");
            Authentication::AnyToken
        }
    };
    // On SQLite the store of the records must have opened the file before: it takes a new file or its own, and would
    // refuse one that holds our tables only.
    let db = Db::connect(&args.store).await?;
    db.make_tables().await?;
    tracing::info!(store = ?args.store, provider = %args.provider.uri(), lease = ?args.lease, "ready");
    let listener = listen::bind(args.listen).await?;
    let stop = stop.shared();
    let server =
        axum::serve(listener, api::router(db.clone(), authentication)).with_graceful_shutdown(stop.clone());
    let drained = async {
        stop.await;
        tokio::time::sleep(DRAIN_FOR).await;
    };
    tokio::select! {
        served = server => served?,
        () = drained => tracing::warn!("some requests did not end in time and are cut off"),
    }
    // What still holds a connection was cut off above, and must not hold us.
    let _ = tokio::time::timeout(CLOSE_FOR, db.close()).await;
    Ok(())
}

/// Requests here take milliseconds; whoever stops nodes waits 30 seconds and more before it kills them.
const DRAIN_FOR: Duration = Duration::from_secs(10);

/// Saying goodbye to a database that is gone is not worth more.
const CLOSE_FOR: Duration = Duration::from_secs(2);
