//! The command line: commands, flags and help texts. `config` interprets the values.
//!
//! Every flag of the gateway is optional here, because its value may come from a variable or from the file.

pub(crate) mod copy;
pub(crate) mod identity;
pub(crate) mod operator;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands::ledger::LedgerArgs;
use crate::config::units::parse_duration;
use operator::{EffectsCommand, KeysForgetArgs, KeysResolveArgs, WhichArgs};

/// Safe retries for HTTP APIs that move money, stock or messages.
///
/// A client that gets no response retries. ibid makes the retry safe: the same request with the same key is executed
/// once, and every retry gets the first response.
#[derive(Debug, Parser)]
#[command(name = "ibid", version, color = clap::ColorChoice::Never, max_term_width = 100)]
#[command(arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a gateway in front of an HTTP API that makes its retries safe
    #[command(after_help = VARIABLES)]
    Gateway(GatewayArgs),
    /// Try it out: a gateway in front of an example API, the reference application and its card processor
    ///
    /// All in one process on loopback, with stores that are deleted when it ends. It prints curl lines to paste. If a
    /// default port is in use, it chooses a free one.
    #[cfg(feature = "demo")]
    #[command(after_help = LOG_VARIABLES)]
    Demo(DemoArgs),
    /// Create or upgrade the tables of a store
    ///
    /// The gateway does this itself when it starts. Use this command if the gateway's database user may not create tables.
    Migrate(MigrateArgs),
    /// Check a store for problems: durability, replication, clock, schema
    ///
    /// Changes nothing, and also describes a store that the gateway refuses to use. Exits with 1 if there is a warning or
    /// worse.
    Doctor(DoctorArgs),
    /// Settle lapsed leases, each by the `on_lapse` rule that its record was begun with
    ///
    /// Every gateway does this itself. Use this command for a store that no gateway is running on.
    Sweep(SweepArgs),
    /// Look up unknown outcomes at the upstream, or compare our books with the provider's
    ///
    /// Looks up each record by the rule that it was begun with, when its next lookup is due. Every gateway does this itself.
    /// Use this command for a store that no gateway is running on.
    #[command(args_conflicts_with_subcommands = true)]
    Reconcile(ReconcileArgs),
    /// Remove what has expired: responses, records, effects, history
    ///
    /// The gateway does this itself, every `upkeep.reap_every`. Use this command for a store that no gateway is running on,
    /// or to see first what would be removed. Any number may run at once. You may stop it at any time: the next run
    /// continues.
    Reap(ReapArgs),
    /// Inspect records and settle them
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Inspect effects (the calls to other services) and settle them
    #[command(subcommand)]
    Effects(EffectsCommand),
    /// Show and change the settings that make up the ids of records
    #[command(subcommand)]
    Identity(identity::IdentityCommand),
    /// Copy a store onto another one and open that, so that a service can grow from a file onto a server
    ///
    /// Closes the source first: running nodes answer 503, and stored requests and effects wait. Waits until no node can still
    /// act on it (twice `store.identity_valid_for`, 30 s by default) and until running requests have ended or lapsed. Then it
    /// copies settings, secrets, identity, records, history, evidence and effects, compares both stores and opens the target.
    /// The source stays closed. If it is stopped, run it again: it continues where it stopped.
    Copy(copy::CopyArgs),
    /// Check the gateway's configuration file
    #[command(subcommand)]
    Config(ConfigCommand),
}

/// Arguments of `ibid gateway`. Flags win over variables, variables over the file, the file over defaults.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct GatewayArgs {
    /// The API behind the gateway, an absolute `http://` or `https://` URL
    ///
    /// Required: here, in the variable, or as `upstream` in the file. [default: none]
    #[arg(long, value_name = "URL", env = "IBID_UPSTREAM", hide_env_values = true)]
    pub(crate) upstream: Option<String>,

    /// The source of the tenant that owns a key: `header:NAME`, `authorization` or `none`
    ///
    /// Required: two clients may choose the same key, and without a tenant one would get the other's response.
    /// `header:NAME` is trusted only from trusted hops (`tenant.trusted` in the file, by default loopback) and
    /// stripped from others. `authorization` derives the tenant from the bytes of a static credential. `none` means that
    /// there is one tenant. In the file: `tenant.from`. [default: none is guessed]
    #[arg(long, value_name = "HOW", env = "IBID_TENANT", hide_env_values = true)]
    pub(crate) tenant: Option<String>,

    /// The rule for requests without a key: `required` refuses them, `optional` lets them pass
    ///
    /// With `optional` such a request passes unguarded and is counted per route. A route's own `key` in the file wins.
    /// In the file: `defaults.key`. [default: required]
    #[arg(long, value_name = "RULE", env = "IBID_KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,

    /// The address that clients connect to
    ///
    /// In the file: `listen`. [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", env = "IBID_LISTEN", hide_env_values = true)]
    pub(crate) listen: Option<String>,

    /// The address that operators connect to: metrics, health, and the admin API if `IBID_ADMIN_TOKEN` is set
    ///
    /// In the file: `admin_listen`. [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS", env = "IBID_ADMIN_LISTEN", hide_env_values = true)]
    pub(crate) admin_listen: Option<String>,

    /// The store of the records: `sqlite:PATH`, `postgres://…`, `mysql://…`, `dynamodb://TABLE`, `redis://…` or `memory:`
    ///
    /// In the file: `store.url`. [default: sqlite:ibid.db]
    #[arg(long, value_name = "URL", env = "IBID_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,

    /// Path of the configuration file
    ///
    /// A file that is named here must exist. [default: ibid.toml, if it exists]
    #[arg(long, value_name = "PATH", env = "IBID_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,

    /// Require HTTP/2 of the upstream (in plain text with prior knowledge)
    ///
    /// In the file: `upstream_http2`. [default: false]
    #[arg(long, value_name = "BOOL", env = "IBID_UPSTREAM_HTTP2", hide_env_values = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(value_parser = clap::builder::BoolishValueParser::new(), hide_possible_values = true)]
    pub(crate) upstream_http2: Option<bool>,
}

/// Arguments of `ibid demo`: its listening addresses and the gateway's store.
#[cfg(feature = "demo")]
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DemoArgs {
    /// The address that clients connect to
    ///
    /// [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", env = "IBID_LISTEN", hide_env_values = true)]
    pub(crate) listen: Option<String>,

    /// The address that operators connect to: metrics and health
    ///
    /// [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS", env = "IBID_ADMIN_LISTEN", hide_env_values = true)]
    pub(crate) admin_listen: Option<String>,

    /// The address of the reference application
    ///
    /// [default: 127.0.0.1:8090]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) payments_listen: Option<String>,

    /// The address of its simulated card processor
    ///
    /// [default: 127.0.0.1:8091]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) provider_listen: Option<String>,

    /// The gateway's store, to try one out: `postgres://USER@HOST/DATABASE`
    ///
    /// Its records stay when the demo ends, so the keys of each run are new. The reference application always uses a
    /// SQLite file. Not read from `IBID_STORE`, which may name a store in use.
    ///
    /// [default: a SQLite file that is deleted at the end]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
}

/// Arguments of `ibid migrate`: a store and a mode.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MigrateArgs {
    /// Print the statements that are missing instead of running them, or a DynamoDB table for `cloudformation` or
    /// `terraform` [default: run them]
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, default_missing_value = "statements", hide_possible_values = true)]
    pub(crate) print: Option<PrintFormat>,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Format in which `ibid migrate --print` prints what is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrintFormat {
    /// Statements of a SQL store.
    Statements,
    /// A template for AWS CloudFormation.
    Cloudformation,
    /// A resource of the AWS provider of Terraform.
    Terraform,
}

/// Arguments of `ibid doctor`: a store and an upstream.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object [default: a table]
    #[arg(long)]
    pub(crate) json: bool,

    /// The API behind the gateway, an absolute `http://` or `https://` URL
    ///
    /// Here, in the variable, or as `upstream` in the file; without it only the store is checked. [default: none]
    #[arg(long, value_name = "URL", env = "IBID_UPSTREAM", hide_env_values = true)]
    pub(crate) upstream: Option<String>,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// The subcommands of `ibid reconcile`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ReconcileCommand {
    /// Compare our books with the provider's
    ///
    /// Finds lines that only the provider has, that it has twice, that differ, and that it does not have. Exits with 0
    /// if the books are equal, with 1 if they differ, with 2 if a line can't be read. Amounts are compared by value:
    /// `12.50` is `12.5`.
    Ledger(LedgerArgs),
}

/// Arguments of `ibid sweep`: rounds and a store.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `ibid reconcile`: an upstream, rounds and a store.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ReconcileArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ReconcileCommand>,

    /// The API to look up outcomes at, an absolute `http://` or `https://` URL
    ///
    /// Required: here, in the variable, or as `upstream` in the file. [default: none]
    #[arg(long, value_name = "URL", env = "IBID_UPSTREAM", hide_env_values = true)]
    pub(crate) upstream: Option<String>,

    #[command(flatten)]
    pub(crate) rounds: RoundsArgs,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of a chore that may run in rounds.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RoundsArgs {
    /// Repeat after this time, such as `10s`, until stopped [default: once]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) every: Option<Duration>,

    /// Print one JSON object per round [default: a sentence]
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `ibid reap`: a mode, rounds and a store.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ReapArgs {
    /// Count what would be removed now, and change nothing [default: remove it]
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Repeat after this time, such as `60s` or `5m`, until stopped [default: once, to the end]
    #[arg(long, value_name = "DURATION", conflicts_with = "dry_run", value_parser = duration)]
    pub(crate) every: Option<Duration>,

    /// Print one JSON object, with `--every` one line per round [default: one line per field]
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// The subcommands of `ibid keys`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// List records, ordered by id
    List(KeysListArgs),
    /// Count records by state, and dead letters; large tables are estimated
    Count(KeysCountArgs),
    /// Show one record with its history
    Show(KeysShowArgs),
    /// Settle unknown records by what you found out: executed, with a response, or not executed
    Resolve(KeysResolveArgs),
    /// Forget the responses of completed or expired records: their keys run as new
    Forget(KeysForgetArgs),
}

/// Arguments of `ibid keys list`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KeysListArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,

    /// Most records to list, up to 1000
    #[arg(long, value_name = "COUNT", default_value_t = LIST_LIMIT)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,

    /// Continue an earlier list behind this cursor, which that list ended with [default: from the start]
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,

    /// Print one JSON array, ids in full [default: a table]
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `ibid keys count`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KeysCountArgs {
    /// Print one JSON object [default: one line per state]
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `ibid keys show`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KeysShowArgs {
    /// The first 4 to 32 hex digits of the record's id, as logs and `keys list` show it
    #[arg(value_name = "ID")]
    pub(crate) id: String,

    /// Print one JSON object [default: one line per field]
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments that name the store.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct StoreArgs {
    /// The store of the records: `sqlite:PATH`, `postgres://…`, `mysql://…`, `dynamodb://TABLE`, `redis://…` or `memory:` [default: `store.url` of the file, else sqlite:ibid.db]
    #[arg(long, value_name = "URL", env = "IBID_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,

    /// The configuration file that names the store [default: ibid.toml, if it exists]
    #[arg(long, value_name = "PATH", env = "IBID_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
}

/// The subcommands of `ibid config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration and print the rules of every route
    ///
    /// Reads the file, the variables and the flags as `ibid gateway` would, and starts nothing. Warnings go to
    /// stderr and leave the exit code at 0; errors name file, line and key, and exit with 2.
    #[command(after_help = VARIABLES)]
    Check(ConfigCheckArgs),
}

/// Arguments of `ibid config check`: all those of the gateway.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConfigCheckArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,

    /// Print one JSON object with every setting [default: tables]
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a duration that is longer than zero.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let length = parse_duration(text).map_err(|problem| format!("it {problem}"))?;
    if length.is_zero() { Err("it must be longer than zero".to_owned()) } else { Ok(length) }
}

/// Turns clap's error for a command line into the form of every other failure.
pub(crate) fn refusal(error: &clap::Error) -> crate::output::Failure {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let message = paragraphs.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let tip = paragraphs.find_map(|paragraph| paragraph.trim().strip_prefix("tip: ").map(str::to_owned));
    crate::output::Failure::usage(message).hint(tip.unwrap_or_else(|| "run `ibid --help`".to_owned()))
}

/// Default number of records in a list: a screenful or two. `--after` gets the rest.
const LIST_LIMIT: u32 = 100;

const EXIT_CODES: &str = "Exit codes: 0 done, 1 the result is negative, 2 usage or configuration error, 3 runtime failure (store, network, disk).";

const VARIABLES: &str = "\
Variables without a flag:
  IBID_SECRETS     fingerprint secrets, comma-separated, newest first; not a flag, because command
                   lines are visible to everyone on the host [default: `fingerprint.secrets`
                   of the file, else one that is generated once and stored in the store]
  IBID_ADMIN_TOKEN the bearer token for the admin API, at least 16 characters; not a flag, for the
                   same reason [default: none, and then there is no admin API]
  IBID_LOG         which log lines to write: `info`, `ibid=debug` [default: info]
  IBID_LOG_FORMAT  `text` or `json` [default: text]";

#[cfg(feature = "demo")]
const LOG_VARIABLES: &str = "\
Variables without a flag:
  IBID_LOG         which log lines to write: `info`, `ibid=debug` [default: info]
  IBID_LOG_FORMAT  `text` or `json` [default: text]";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(words: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(words.split_whitespace())
    }

    fn each_command(command: &clap::Command, visit: &mut dyn FnMut(&clap::Command)) {
        visit(command);
        command.get_subcommands().for_each(|sub| each_command(sub, visit));
    }

    #[test]
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_says_its_default() {
        each_command(&Cli::command(), &mut |command| {
            for arg in command.get_opts().filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()))
            {
                let help =
                    arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
                let says = help.contains("[default: ") || !arg.get_default_values().is_empty();
                assert!(says, "--{} of {}", arg.get_id(), command.get_name());
            }
        });
    }

    #[test]
    fn every_flag_of_the_gateway_has_its_variable() {
        let cli = Cli::command();
        let gateway = cli.find_subcommand("gateway").unwrap();
        for arg in gateway.get_opts() {
            let name = arg.get_long().unwrap().to_uppercase().replace('-', "_");
            assert_eq!(arg.get_env().unwrap().to_str().unwrap(), format!("IBID_{name}"));
        }
    }

    #[test]
    fn upstream_http2_may_stand_alone_or_with_a_value() {
        let http2 = |words: &str| match parse(words).unwrap().command {
            Command::Gateway(args) => args.upstream_http2,
            _ => None,
        };
        assert_eq!(http2("ibid gateway"), None);
        assert_eq!(http2("ibid gateway --upstream-http2"), Some(true));
        assert_eq!(http2("ibid gateway --upstream-http2=no"), Some(false));
    }

    #[test]
    fn what_clap_refuses_comes_in_the_form_of_every_failure() {
        let failure = refusal(&parse("ibid gateway --upstraem x").unwrap_err());
        assert_eq!(failure.message, "unexpected argument '--upstraem' found");
        assert_eq!(failure.hint.unwrap(), "a similar argument exists: '--upstream'");
        let failure = refusal(&parse("ibid keys show").unwrap_err());
        assert!(failure.message.contains("<ID>"), "{}", failure.message);
        let failure = refusal(&parse("ibid keys resolve 1a2b3c4d --reason r").unwrap_err());
        assert!(failure.message.contains("--not-executed"), "{}", failure.message);
        assert!(parse("ibid keys resolve 1a2b3c4d --reason r --not-executed --status 200").is_err());
        assert!(parse("ibid keys resolve 1a2b3c4d --reason r --status 101").is_err());
        assert!(parse("ibid keys forget 1a2b3c4d --yes").is_err(), "no reason");
    }
}
