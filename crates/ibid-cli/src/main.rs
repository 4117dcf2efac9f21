//! `ibid`: the gateway before any HTTP API, and the operator's commands.

mod args;
mod commands;
mod config;
mod gateway;
mod output;

use std::io::{stderr, stdout};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use clap::error::ErrorKind;
use ibid_core::store::Store;

use args::{Cli, Command, ConfigCommand, DemoArgs, GatewayArgs, KeysCommand};
use config::{Config, StoreUrl, Variables};
use output::{Failure, Failures};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version are answers, and go to stdout.
        Err(error) if error.exit_code() == 0 => {
            // A reader that closed the pipe has seen enough.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        // Nothing was asked: the help says what may be.
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::from(output::Exit::Usage as u8);
        }
        Err(error) => return failed(&args::refusal(&error).into()),
    };
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failures) => failed(&failures),
    }
}

fn run(command: Command) -> Result<(), Failures> {
    match command {
        Command::Gateway(args) => gateway(&args),
        Command::Demo(args) => demo(&args),
        Command::Config(ConfigCommand::Check(args)) => {
            commands::config_check::run(&args, &Variables::of_process()?, &mut stdout(), &mut stderr())
        }
        Command::Keys(KeysCommand::List(args)) => {
            let store = open_store(&config::store_of(&args.place)?)?;
            wait_for(commands::keys::list(&*store, &args, &mut stdout(), &mut stderr()))
        }
        Command::Keys(KeysCommand::Show(args)) => {
            let store = open_store(&config::store_of(&args.place)?)?;
            wait_for(commands::keys::show(&*store, &args, &mut stdout()))
        }
    }
}

fn gateway(args: &GatewayArgs) -> Result<(), Failures> {
    let log = config::Log::of_process()?;
    let config = Config::load(args, &Variables::of_process()?)?;
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    // MERGE: log as `log` says, serve with `config`.
    let _ = log;
    Err(Failure::world("the gateway is not wired yet").into())
}

fn demo(args: &DemoArgs) -> Result<(), Failures> {
    for (flag, value) in [("--listen", &args.listen), ("--admin-listen", &args.admin_listen)] {
        if let Some(text) = value {
            config::parse_address(text).map_err(|mut failure| {
                failure.message = format!("`{flag}` {}", failure.message);
                failure
            })?;
        }
    }
    // MERGE: run the demo.
    Err(Failure::world("the demo is not wired yet").into())
}

/// MERGE: opens the store that `url` names.
fn open_store(url: &StoreUrl) -> Result<Arc<dyn Store>, Failure> {
    Err(Failure::world(format!("cannot open the store at `{url}`")).because("stores are not wired yet"))
}

/// Runs a command that asks a store a few questions: one thread is enough.
fn wait_for(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failures> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::world("cannot start the runtime").because(error))?;
    Ok(runtime.block_on(command)?)
}

fn failed(failures: &Failures) -> ExitCode {
    eprint!("{failures}");
    failures.exit_code()
}
