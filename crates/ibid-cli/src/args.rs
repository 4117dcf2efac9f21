//! The command line: what may be asked, and the help texts. What the values mean is `config`'s business.
//!
//! Every flag of the gateway is optional here, for its value may stand in a variable or in the file.

pub(crate) mod identity;
pub(crate) mod operator;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::commands::ledger::LedgerArgs;
use crate::config::units::parse_duration;
use operator::{EffectsCommand, KeysForgetArgs, KeysResolveArgs, WhichArgs};

/// Safe retries for HTTP APIs that move money, stock or messages.
///
/// A client that gets no answer retries. ibid makes the retry safe: the same key with the same request is carried
/// out once, and every retry gets the first answer.
#[derive(Debug, Parser)]
#[command(name = "ibid", version, color = clap::ColorChoice::Never, max_term_width = 100)]
#[command(arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What may be asked.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Stand before an HTTP API and make its retries safe
    #[command(after_help = VARIABLES)]
    Gateway(GatewayArgs),
    /// Try it out: a gateway before an example API, the reference application and its card processor
    ///
    /// All in one process on loopback, with stores that go when it ends. It prints curl lines to paste. Where a default
    /// port is taken it chooses a free one.
    #[cfg(feature = "demo")]
    #[command(after_help = LOG_VARIABLES)]
    Demo(DemoArgs),
    /// Make or upgrade the tables of a store
    ///
    /// The gateway does so itself when it starts; this is for those who give it a user that may not.
    Migrate(MigrateArgs),
    /// Say what is not as it should be with a store: durability, replication, clock, schema
    ///
    /// Changes nothing, and also describes a store that the gateway refuses. Exits with 1 if there is a warning or
    /// worse.
    Doctor(DoctorArgs),
    /// Settle lapsed leases, each by the rule that its record was begun with
    ///
    /// Every gateway does so by itself; this is for a store that has none running.
    Sweep(SweepArgs),
    /// Ask the upstream about records whose outcome is unknown, or compare our books with the provider's
    ///
    /// By the rule that each record was begun with, when its next question is due. Every gateway does so by itself; this
    /// is for a store that has none running.
    #[command(args_conflicts_with_subcommands = true)]
    Reconcile(ReconcileArgs),
    /// Remove what is past its time: answers, records, effects, history
    ///
    /// The gateway does so itself, every `upkeep.reap_every`; this is for stores that no gateway looks after, and to look
    /// first. Any number may run at once. It may be stopped at any moment: the next run goes on.
    Reap(ReapArgs),
    /// Look at records and settle them
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Look at effects, the calls to the outside, and settle them
    #[command(subcommand)]
    Effects(EffectsCommand),
    /// Look at what makes up the ids of records, and change it
    #[command(subcommand)]
    Identity(identity::IdentityCommand),
    /// Look at the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
}

/// What the gateway is told. Flags win over variables, variables over the file, the file over defaults.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct GatewayArgs {
    /// The API behind the gateway, an absolute `http://` or `https://` URL
    ///
    /// Required: here, in the variable, or as `upstream` in the file. [default: none]
    #[arg(long, value_name = "URL", env = "IBID_UPSTREAM", hide_env_values = true)]
    pub(crate) upstream: Option<String>,

    /// Whose keys they are: `header:NAME`, `authorization` or `none`
    ///
    /// Required: two clients may choose the same key, and without a tenant one would get the other's answer.
    /// `header:NAME` is believed only from trusted hops (`tenant.trusted` in the file, by default loopback) and
    /// stripped from others. `authorization` follows the bytes of a static credential. `none` says that there is
    /// one tenant. In the file: `tenant.from`. [default: none is guessed]
    #[arg(long, value_name = "HOW", env = "IBID_TENANT", hide_env_values = true)]
    pub(crate) tenant: Option<String>,

    /// Whether a request without a key is refused: `required` or `optional`
    ///
    /// With `optional` such a request passes unguarded, and is counted per route. A route's own `key` in the file wins.
    /// In the file: `defaults.key`. [default: required]
    #[arg(long, value_name = "RULE", env = "IBID_KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,

    /// Where clients connect
    ///
    /// In the file: `listen`. [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", env = "IBID_LISTEN", hide_env_values = true)]
    pub(crate) listen: Option<String>,

    /// Where operators connect: metrics, health, and the admin API if `IBID_ADMIN_TOKEN` is set
    ///
    /// In the file: `admin_listen`. [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS", env = "IBID_ADMIN_LISTEN", hide_env_values = true)]
    pub(crate) admin_listen: Option<String>,

    /// Where records live: `sqlite:PATH`, `postgres://USER@HOST/DATABASE` or `memory:`
    ///
    /// In the file: `store.url`. [default: sqlite:ibid.db]
    #[arg(long, value_name = "URL", env = "IBID_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,

    /// The configuration file
    ///
    /// A file that is named here must be there. [default: ibid.toml, if it is there]
    #[arg(long, value_name = "PATH", env = "IBID_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,

    /// Demand HTTP/2 of the upstream (in plain text with prior knowledge)
    ///
    /// In the file: `upstream_http2`. [default: false]
    #[arg(long, value_name = "BOOL", env = "IBID_UPSTREAM_HTTP2", hide_env_values = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(value_parser = clap::builder::BoolishValueParser::new(), hide_possible_values = true)]
    pub(crate) upstream_http2: Option<bool>,
}

/// What the demo is told.
#[cfg(feature = "demo")]
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DemoArgs {
    /// Where clients connect
    ///
    /// [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", env = "IBID_LISTEN", hide_env_values = true)]
    pub(crate) listen: Option<String>,

    /// Where operators connect: metrics and health
    ///
    /// [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS", env = "IBID_ADMIN_LISTEN", hide_env_values = true)]
    pub(crate) admin_listen: Option<String>,

    /// Where the reference application listens
    ///
    /// [default: 127.0.0.1:8090]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) payments_listen: Option<String>,

    /// Where its simulated card processor listens
    ///
    /// [default: 127.0.0.1:8091]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) provider_listen: Option<String>,
}

/// What to migrate.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MigrateArgs {
    /// Print the statements that are missing instead of running them [default: run them]
    #[arg(long)]
    pub(crate) print: bool,

    #[command(flatten)]
    pub(crate) place: StoreArgs,
}

/// What to look at.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object [default: a table]
    #[arg(long)]
    pub(crate) json: bool,

    /// The API behind the gateway, an absolute `http://` or `https://` URL
    ///
    /// Here, in the variable, or as `upstream` in the file; without it only the store is looked at. [default: none]
    #[arg(long, value_name = "URL", env = "IBID_UPSTREAM", hide_env_values = true)]
    pub(crate) upstream: Option<String>,

    #[command(flatten)]
    pub(crate) place: StoreArgs,
}

/// What may be settled, and how.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ReconcileCommand {
    /// Compare our books with the provider's
    ///
    /// Finds what the provider has and we don't, what it has twice, what differs, and what it does not have. Exits with 0
    /// if the books are equal, with 1 if they differ, with 2 if a line can't be read. Amounts are compared by value:
    /// `12.50` is `12.5`.
    Ledger(LedgerArgs),
}

/// How to sweep.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs,

    #[command(flatten)]
    pub(crate) place: StoreArgs,
}

/// How to reconcile.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ReconcileArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ReconcileCommand>,

    /// The API that is asked, an absolute `http://` or `https://` URL
    ///
    /// Required: here, in the variable, or as `upstream` in the file. [default: none]
    #[arg(long, value_name = "URL", env = "IBID_UPSTREAM", hide_env_values = true)]
    pub(crate) upstream: Option<String>,

    #[command(flatten)]
    pub(crate) rounds: RoundsArgs,

    #[command(flatten)]
    pub(crate) place: StoreArgs,
}

/// How often a chore is done.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RoundsArgs {
    /// Again after so long, such as `10s`, until told to stop [default: once]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) every: Option<Duration>,

    /// Print one JSON object a round [default: a sentence]
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to remove, and how often.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ReapArgs {
    /// Count what would go now, and touch nothing [default: remove it]
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Go on until stopped, with so long from one round to the next: `60s`, `5m` [default: once, to the end]
    #[arg(long, value_name = "DURATION", conflicts_with = "dry_run", value_parser = duration)]
    pub(crate) every: Option<Duration>,

    /// Print one JSON object, with `--every` one line a round [default: one line a field]
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) place: StoreArgs,
}

/// What may be asked about records.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// List records, in the order of their ids
    List(KeysListArgs),
    /// Show one record with its history
    Show(KeysShowArgs),
    /// Settle an unknown record, or many, by what you found out: executed, with an answer, or not executed
    Resolve(KeysResolveArgs),
    /// Forget the answer of a completed or expired record, or of many: its key runs as new
    Forget(KeysForgetArgs),
}

/// Which records to list.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KeysListArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,

    /// How many at most, up to 1000
    #[arg(long, value_name = "COUNT", default_value_t = LIST_LIMIT)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,

    /// Only ids after this one: how the list before went on [default: from the first]
    #[arg(long, value_name = "ID")]
    pub(crate) after: Option<String>,

    /// Print one JSON array, ids in full [default: a table]
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) place: StoreArgs,
}

/// Which record to show.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KeysShowArgs {
    /// The first 4 to 64 hex digits of the record's id, as logs and `keys list` show it
    #[arg(value_name = "ID")]
    pub(crate) id: String,

    /// Print one JSON object [default: one line a field]
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) place: StoreArgs,
}

/// Which store to open.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct StoreArgs {
    /// Where records live: `sqlite:PATH`, `postgres://USER@HOST/DATABASE` or `memory:` [default: `store.url` of the file, else sqlite:ibid.db]
    #[arg(long, value_name = "URL", env = "IBID_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,

    /// The configuration file that names the store [default: ibid.toml, if it is there]
    #[arg(long, value_name = "PATH", env = "IBID_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
}

/// What may be asked about the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration and print the rules of every route
    ///
    /// Reads the file, the variables and the flags as `ibid gateway` would, and starts nothing. Warnings go to
    /// stderr and leave the exit code at 0; errors name file, line and key, and exit with 2.
    #[command(after_help = VARIABLES)]
    Check(ConfigCheckArgs),
}

/// What to check: all that the gateway is told.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConfigCheckArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,

    /// Print one JSON object with every setting [default: tables]
    #[arg(long)]
    pub(crate) json: bool,
}

/// A length of time that is not nothing.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let length = parse_duration(text).map_err(|problem| format!("it {problem}"))?;
    if length.is_zero() { Err("it must be longer than zero".to_owned()) } else { Ok(length) }
}

/// Whole command lines that clap refuses, in the form of every other failure.
pub(crate) fn refusal(error: &clap::Error) -> crate::output::Failure {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let message = paragraphs.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let tip = paragraphs.find_map(|paragraph| paragraph.trim().strip_prefix("tip: ").map(str::to_owned));
    crate::output::Failure::usage(message).hint(tip.unwrap_or_else(|| "run `ibid --help`".to_owned()))
}

/// A screenful or two; the cursor gets the rest.
const LIST_LIMIT: u32 = 100;

const EXIT_CODES: &str = "Exit codes: 0 done, 1 the answer is no, 2 asked wrongly, 3 the world failed.";

const VARIABLES: &str = "\
Variables without a flag:
  IBID_SECRETS     fingerprint secrets, comma-separated, newest first; not a flag, for command
                   lines are visible to everyone on the host [default: `fingerprint.secrets`
                   of the file, else one that is made once and kept in the store]
  IBID_ADMIN_TOKEN what an operator must show to the admin API, at least 16 characters; not a
                   flag, for the same reason [default: none, and then there is no such API]
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
