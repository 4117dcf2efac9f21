//! `payments serve`: the API on one database, until the process is told to stop.

use std::error::Error;

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
    let db = Db::connect(&args.store).await?;
    db.make_tables().await?;
    tracing::info!(store = ?args.store, provider = %args.provider.uri(), lease = ?args.lease, "ready");
    let listener = listen::bind(args.listen).await?;
    axum::serve(listener, api::router(db.clone(), authentication)).with_graceful_shutdown(stop).await?;
    db.close().await;
    Ok(())
}
