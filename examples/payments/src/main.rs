//! `payments`: the API (`serve`), the simulated card processor (`provider`), or a look at both their books (`ledger`).

use std::process::ExitCode;

use clap::Parser;
use payments::args::{Cli, Command};
use payments::listen::{self, Failure};
use payments::{ledger, provider, serve};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("PAYMENTS_LOG");
    // PostgreSQL notices every table that is there already.
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,sqlx=warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    match run(cli.command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_NO),
        Err(error) => {
            eprintln!("error: {error}");
            let mut beneath = error.source();
            while let Some(cause) = beneath {
                eprintln!("  cause: {cause}");
                beneath = cause.source();
            }
            ExitCode::from(EXIT_WORLD)
        }
    }
}

/// Whether the answer is yes.
fn run(command: Command) -> Result<bool, Failure> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let stop = listen::stop_signal()?;
        let running = match command {
            Command::Serve(args) => serve::start(args, stop).await?,
            Command::Provider(args) => provider::start(args, stop).await?,
            Command::Ledger(args) => return ledger::run(args).await,
        };
        running.announce()?;
        running.ended().await?;
        Ok(true)
    })
}

/// It was asked, and the answer is no.
const EXIT_NO: u8 = 1;

/// The question was good and the world failed. Wrong questions end in clap, with 2.
const EXIT_WORLD: u8 = 3;
