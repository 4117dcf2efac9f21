//! The `ibid` program: a gateway in front of any HTTP API, and the operator's commands.

mod args;
mod commands;
mod config;
mod front;
mod gateway;
mod open_store;
mod otlp;
mod output;
mod progress;

use std::io::{stderr, stdout};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use clap::error::ErrorKind;
use tracing::Level;
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use args::identity::IdentityCommand;
use args::operator::EffectsCommand;
use args::{
    Cli, Command, ConfigCommand, GatewayArgs, KeysCommand, ReconcileArgs, ReconcileCommand, StoreArgs,
};
use config::{Config, EnvVars, StoreUrl};
use gateway::Gateway;
use ibid::Store;
use ibid::operator::Operator;
use open_store::open_store;
use otlp::Spans;
use output::{Failure, Failures};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version are results, and go to stdout.
        Err(error) if error.exit_code() == 0 => {
            // A reader that closed the pipe needs no more output.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        // No command was given: print the help.
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::from(output::Exit::Usage as u8);
        }
        Err(error) => return report(&args::refusal(&error).into()),
    };
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failures) => report(&failures),
    }
}

fn run(command: Command) -> Result<(), Failures> {
    match command {
        Command::Gateway(args) => gateway(&args),
        #[cfg(feature = "demo")]
        Command::Demo(args) => commands::demo::run(&args, &mut stdout()),
        Command::Migrate(args) => {
            let url = config::store_of(&args.store)?;
            wait_for(commands::migrate::run(&url, args.print, &mut stdout()))
        }
        Command::Doctor(args) => {
            let url = config::store_of(&args.store)?;
            let secrets = config::secrets_of(&args.store, &EnvVars::of_process()?)?;
            let upstream = config::upstream_if_named(&args)?;
            let front = config::front_of(&args.store, &EnvVars::of_process()?)?;
            let targets = commands::doctor::Targets { upstream: upstream.as_ref(), front: front.as_ref() };
            wait_for(commands::doctor::run(&url, secrets, targets, args.json, &mut stdout()))
        }
        Command::Sweep(args) => on_store(&args.store, async |url, store| {
            let rounds = rounds(&args.rounds);
            until_stopped(commands::sweep_reconcile::sweep(url, store, &rounds, &mut stdout())).await
        }),
        Command::Reconcile(args) => reconcile(&args),
        Command::Config(ConfigCommand::Check(args)) => {
            commands::config_check::run(&args, &EnvVars::of_process()?, &mut stdout(), &mut stderr())
        }
        Command::Reap(args) => {
            let keep = config::keep_of(&args.store)?;
            on_store(&args.store, async |_, store| {
                until_stopped(commands::reap::run(&*store, keep, &args, &mut stdout())).await
            })
        }
        Command::Keys(command) => run_on_keys(command),
        Command::Effects(command) => run_on_effects(command),
        Command::Identity(command) => run_on_identity(command),
        Command::Copy(args) => wait_for(commands::copy::run(&args, &mut stdout(), &mut stderr())),
    }
}

/// Runs a command on records, named by their keys.
fn run_on_keys(command: KeysCommand) -> Result<(), Failures> {
    match command {
        KeysCommand::List(args) => on_store(&args.store, async |_, store| {
            let store = commands::keys::browse(&*store)?;
            commands::keys::list(store, &args, &mut stdout(), &mut stderr()).await
        }),
        KeysCommand::Count(args) => as_operator(&args.store, async |operator| {
            commands::key_counts::run(&operator, args.json, &mut stdout()).await
        }),
        KeysCommand::Resolve(args) => as_operator(&args.act.store, async |operator| {
            commands::resolve::resolve(&operator, &args, &mut stdout(), &mut stderr()).await
        }),
        KeysCommand::Forget(args) => as_operator(&args.act.store, async |operator| {
            commands::resolve::forget(&operator, &args, &mut stdout(), &mut stderr()).await
        }),
        KeysCommand::Show(args) => on_store(&args.store, async |_, store| {
            let load = async |id| store.load(id).await;
            commands::keys::show(commands::keys::browse(&*store)?, load, &args, &mut stdout()).await
        }),
    }
}

fn run_on_effects(command: EffectsCommand) -> Result<(), Failures> {
    match command {
        EffectsCommand::List(args) => as_operator(&args.store, async |operator| {
            commands::effects::list(&operator, &args, &mut stdout(), &mut stderr()).await
        }),
        EffectsCommand::Retry(args) => as_operator(&args.act.store, async |operator| {
            commands::effects::retry(&operator, &args, &mut stdout(), &mut stderr()).await
        }),
        EffectsCommand::Discard(args) => as_operator(&args.act.store, async |operator| {
            commands::effects::discard(&operator, &args, &mut stdout(), &mut stderr()).await
        }),
    }
}

fn run_on_identity(command: IdentityCommand) -> Result<(), Failures> {
    match command {
        IdentityCommand::Show(args) => on_store(&args.store, async |_, store| {
            commands::identity::show(&*store, &args, &mut stdout()).await
        }),
        IdentityCommand::Change(args) => on_store(&args.store, async |_, store| {
            commands::identity::change(&*store, &args, &mut stdout(), &mut stderr()).await
        }),
    }
}

/// Settles `unknown` records by lookups at the upstream, or compares ledgers.
fn reconcile(args: &ReconcileArgs) -> Result<(), Failures> {
    if let Some(ReconcileCommand::Ledger(args)) = &args.command {
        return commands::ledger::main(args);
    }
    let (upstream, rounds) = (config::upstream_of(args)?, rounds(&args.rounds));
    on_store(&args.store, async |url, store| {
        let forwarder = gateway::forward::Forwarder::new(upstream.url, upstream.http2, &upstream.tls)
            .map_err(|error| Failure::usage("the upstream can't be used").because(error))?;
        until_stopped(commands::sweep_reconcile::reconcile(url, store, forwarder, &rounds, &mut stdout()))
            .await
    })
}

fn gateway(args: &GatewayArgs) -> Result<(), Failures> {
    let log = config::LogSettings::of_process()?;
    let config = Config::load(args, &EnvVars::of_process()?)?;
    let _spans = logging(&log)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    serve(&config)
}

/// Runs a gateway until the process receives a stop signal.
fn serve(config: &Config) -> Result<(), Failures> {
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::world("cannot start the runtime").because(error))?;
    runtime.block_on(async {
        let store = open_store(&config.store, true).await?;
        let gateway = Gateway::start(config, store).await?;
        let (public, admin) = gateway.addresses()?;
        announce(config, public, admin);
        gateway.run(stop_signal()?).await;
        Ok(())
    })
}

/// Prints the addresses, the upstream and the store to stderr, in a form that a script can wait for.
fn announce(config: &Config, public: std::net::SocketAddr, admin: std::net::SocketAddr) {
    eprintln!(
        "ibid: listening on {public}, admin on {admin}, upstream {}, store {}",
        config.upstream, config.store
    );
    match config.admin_token {
        Some(_) => eprintln!("ibid: admin API at http://{admin}/v1/"),
        None => eprintln!("ibid: no admin API: `IBID_ADMIN_TOKEN` is not set"),
    }
    for route in config.routes.iter().filter(|route| !route.guard) {
        eprintln!("ibid: not guarded: {} {}", join_methods(&route.methods), route.pattern);
    }
    eprintln!("ibid: not guarded: {}", config::PASSES);
}

fn join_methods(methods: &[http::Method]) -> String {
    methods.iter().map(http::Method::as_str).collect::<Vec<_>>().join(",")
}

/// Returns a future that resolves on SIGTERM or SIGINT.
fn stop_signal() -> Result<impl Future<Output = ()>, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let refused = |error| Failure::world("cannot listen to signals").because(error);
    let mut term = signal(SignalKind::terminate()).map_err(refused)?;
    let mut int = signal(SignalKind::interrupt()).map_err(refused)?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

fn rounds(args: &args::RoundsArgs) -> commands::sweep_reconcile::Rounds {
    commands::sweep_reconcile::Rounds { every: args.every, json: args.json }
}

/// Runs a command until it ends or the process receives a stop signal.
async fn until_stopped(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let stop = stop_signal()?;
    tokio::select! {
        ended = command => ended,
        () = stop => Ok(()),
    }
}

/// Sets up logging to stderr as the variables say. Dropping the returned [`Spans`] sends the remaining spans.
fn logging(log: &config::LogSettings) -> Result<Spans, Failure> {
    let spans = Spans::of_process()?;
    // Regardless of the variable: at finer levels, drivers and HTTP libraries log statements with their parameters, and
    // header fields.
    let is_allowed = filter_fn(|about| about.target().starts_with("ibid") || *about.level() <= Level::INFO);
    let filter = EnvFilter::new(&log.filter).and(is_allowed);
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr);
    let lines = match log.json {
        true => lines.json().boxed(),
        false => lines.with_ansi(false).boxed(),
    };
    let registry = tracing_subscriber::registry().with(lines.with_filter(filter));
    // Not `with(None)`: an unfiltered layer, even an empty one, makes the registry create every span although no layer
    // uses it.
    match spans.layer() {
        Some(layer) => registry.with(layer).init(),
        None => registry.init(),
    }
    if let Some(warning) = spans.warning() {
        tracing::warn!("{warning}");
    }
    Ok(spans)
}

/// Runs a command on the store that the arguments name.
fn on_store(
    args: &StoreArgs,
    command: impl AsyncFnOnce(&StoreUrl, Arc<dyn Store>) -> Result<(), Failure>,
) -> Result<(), Failures> {
    let url = config::store_of(args)?;
    wait_for(async { command(&url, open_store(&url, false).await?).await })
}

/// Runs an operator's command on the store that the arguments name.
fn as_operator(
    args: &StoreArgs,
    command: impl AsyncFnOnce(Operator) -> Result<(), Failure>,
) -> Result<(), Failures> {
    on_store(args, async |_, store| command(Operator::on_store(store)).await)
}

/// Runs a command on one thread, which is enough for a few store operations.
fn wait_for(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failures> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::world("cannot start the runtime").because(error))?;
    log_errors();
    Ok(runtime.block_on(command)?)
}

/// Prints errors that do not end a command to stderr, such as records that a list leaves out because a newer ibid wrote
/// them.
fn log_errors() {
    let is_shown = filter_fn(|about| about.target().starts_with("ibid") && *about.level() == Level::ERROR);
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr).with_ansi(false).without_time();
    // It fails only if logging is set up already.
    let _ = tracing_subscriber::registry().with(lines.with_filter(is_shown)).try_init();
}

fn report(failures: &Failures) -> ExitCode {
    eprint!("{failures}");
    failures.exit_code()
}
