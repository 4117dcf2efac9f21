//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use ibid::http::hooks::{HookSecret, HookSecretError, Scheme};

use crate::account::Accounts;
use crate::charge::InDoubt;
use crate::db::StoreUrl;
use crate::outgoing::HttpUrl;
use crate::provider::faults::Faults;
use crate::provider::webhook::Secret;

/// A payments API that keeps its promise, and a card processor that does not make it easy.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    /// What to run.
    #[command(subcommand)]
    pub command: Command,
}

/// What to run.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the API, its worker and its upkeep.
    Serve(ServeArgs),
    /// Run a simulated card processor.
    Provider(ProviderArgs),
    /// Compare our payments and rides with the processor's charges. Exits with 1 if they differ.
    Ledger(LedgerArgs),
}

/// Of `payments serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8090")]
    pub listen: SocketAddr,
    /// Where payments and records live, together: `sqlite:PATH` or `postgres://…`.
    #[arg(long, value_name = "URL", value_parser = StoreUrl::parse, env = "PAYMENTS_STORE", hide_env_values = true)]
    pub store: StoreUrl,
    /// The card processor: `http://host:port`.
    #[arg(long, value_name = "URL", value_parser = HttpUrl::parse)]
    pub provider: HttpUrl,
    /// How long an attempt may be silent before another takes over.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub lease: Duration,
    /// Whose token is whose account, one `token = account` a line. Without it each token is an account of its own.
    #[arg(long, value_name = "FILE", value_parser = Accounts::read)]
    pub accounts: Option<Accounts>,
    /// What the processor signs its webhooks with: `whsec_` and base64. They are taken at `/.ibid/hooks/processor`.
    #[arg(
        long,
        value_name = "SECRET",
        value_parser = hook_secret,
        env = "PAYMENTS_HOOK_SECRET",
        hide_env_values = true
    )]
    pub hook_secret: Option<HookSecret>,
    /// The processor does not deduplicate by our key: a charge whose answer was lost is not made again but waits for the
    /// processor's webhook, or for a person.
    #[arg(long)]
    pub charge_once: bool,
    /// The processor does not deduplicate by our key, but can be asked by it: a charge whose answer was lost is asked about
    /// after so long, in which no call may still be under way, and made again only if it was not made.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "charge_once")]
    pub verify_after: Option<Duration>,
    /// From one look for lapsed requests to the next. Hidden: the default suits everybody but tests, which do not want
    /// to wait for it, or want it never to come.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration, hide = true)]
    pub sweep_every: Duration,
    /// From one look at the outbox to the next, for effects of other nodes and those that are due again. Hidden for the
    /// same reason.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration, hide = true)]
    pub poll_every: Duration,
}

/// Of `payments ledger`.
#[derive(Debug, Args)]
pub struct LedgerArgs {
    /// Where payments live: `sqlite:PATH` or `postgres://…`.
    #[arg(long, value_name = "URL", value_parser = StoreUrl::parse, env = "PAYMENTS_STORE", hide_env_values = true)]
    pub store: StoreUrl,
    /// The card processor: `http://host:port`.
    #[arg(long, value_name = "URL", value_parser = HttpUrl::parse)]
    pub provider: HttpUrl,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Of `payments provider`.
#[derive(Debug, Args)]
pub struct ProviderArgs {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8091")]
    pub listen: SocketAddr,
    /// What goes wrong and how often, such as `timeout=0.1,reset=every-3,late=first:300ms`.
    #[arg(long, value_name = "SPEC", default_value = "", value_parser = Faults::parse)]
    pub faults: Faults,
    /// Where the dice begin: the same seed gives the nth charge the same fault.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Whom to tell of each charge.
    #[arg(long, value_name = "URL", value_parser = HttpUrl::parse, requires = "webhook_secret")]
    pub webhook: Option<HttpUrl>,
    /// What the webhook is signed with: `whsec_` and base64, or plain text.
    #[arg(
        long,
        value_name = "SECRET",
        value_parser = Secret::parse,
        requires = "webhook",
        env = "PAYMENTS_WEBHOOK_SECRET",
        hide_env_values = true
    )]
    pub webhook_secret: Option<Secret>,
    /// Charge again for a key that was charged before, as a processor without keys would.
    #[arg(long)]
    pub ignore_keys: bool,
    /// Where charges are kept, so that a killed processor does not forget them.
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
}

fn hook_secret(text: &str) -> Result<HookSecret, HookSecretError> {
    HookSecret::parse(&Scheme::Standard, text)
}

impl ServeArgs {
    /// What is done about a charge whose answer was lost.
    pub fn in_doubt(&self) -> InDoubt {
        match (self.verify_after, self.charge_once) {
            (Some(settle), _) => InDoubt::Ask { settle },
            (None, true) => InDoubt::Wait,
            (None, false) => InDoubt::Repeat,
        }
    }
}

/// A whole number and a unit: `250ms`, `5s`, `15m`, `24h`.
pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    let form = "must be a duration such as `250ms`, `5s`, `15m` or `24h`";
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or(form)?;
    let (number, unit) = text.split_at(unit_at);
    let ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(form),
    };
    let number: u64 = number.parse().map_err(|_| form)?;
    let ms = number.checked_mul(ms).filter(|ms| (1..=DURATION_MS_MAX).contains(ms));
    ms.map(Duration::from_millis).ok_or("must be longer than nothing and at most a day")
}

/// A day: no lease and no delay here is meant to be longer, and a typo of a zero or two is caught.
const DURATION_MS_MAX: u64 = 24 * 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_a_unit_and_a_bound() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("24h"), Ok(Duration::from_secs(86_400)));
        for text in ["", "5", "s", "0s", "25h", "1.5s", "-1s", "5 s", "18446744073709551615h"] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }
}
