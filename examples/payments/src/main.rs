//! Runs the payments API until SIGTERM or SIGINT.

use std::process::ExitCode;

use clap::Parser;
use payments::config::Config;
use payments::serve::{self, Failure};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let config = Config::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("PAYMENTS_LOG");
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,sqlx=warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let causes = std::iter::successors(error.source(), |error| error.source());
            eprintln!("error: {error}");
            causes.for_each(|cause| eprintln!("  cause: {cause}"));
            ExitCode::from(3)
        }
    }
}

#[tokio::main]
async fn run(config: Config) -> Result<(), Failure> {
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
