//! Runs the payments API until SIGTERM or SIGINT.

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use ibid::prelude::BoxError;
use payments::config::Config;
use payments::serve;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> ExitCode {
    let config = Config::parse();
    let filter = EnvFilter::try_from_env("PAYMENTS_LOG").unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let Err(error) = run(config).await else { return ExitCode::SUCCESS };
    tracing::error!(error = &*error as &dyn Error, "cannot run");
    ExitCode::FAILURE
}

async fn run(config: Config) -> Result<(), BoxError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let server = serve::start(config, stop).await?;
    println!("listening on {}", server.address);
    server.ended.await?
}
