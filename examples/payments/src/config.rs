//! Command-line options of the server.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use ibid::http::hooks::{HookSecret, HookSecretError, SignatureScheme};
use ibid::prelude::{EffectRules, Safety};

use crate::account::Accounts;

/// A payments API that charges each payment once.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Config {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8090")]
    pub listen: SocketAddr,
    /// Database of payments and records: `sqlite:PATH`, `postgres://…` or `mysql://…`
    #[arg(long, value_name = "URL", env = "PAYMENTS_STORE", hide_env_values = true)]
    pub store: String,
    /// The card processor: `http://host:port`
    #[arg(long, value_name = "URL")]
    pub provider: http::Uri,
    /// Time that an attempt may be silent before another one takes over
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub lease: Duration,
    /// Tokens and their accounts, one `token = account` per line. Without it each token is a separate account
    #[arg(long, value_name = "FILE", value_parser = Accounts::read)]
    pub accounts: Option<Accounts>,
    /// Secret of the processor's webhooks (`whsec_` and base64), which are received at `/.ibid/hooks/processor`
    #[arg(long, value_name = "SECRET", value_parser = hook_secret, env = "PAYMENTS_HOOK_SECRET", hide_env_values = true)]
    pub hook_secret: Option<HookSecret>,
    /// The processor does not deduplicate by our key: a charge without a response waits for the webhook or an operator
    #[arg(long)]
    pub charge_once: bool,
    /// The processor does not deduplicate, but can be queried. A charge without a response is looked up after this time,
    /// when no call can be in flight any more, and repeated only if the processor does not know it
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "charge_once")]
    pub verify_after: Option<Duration>,
    /// Interval between scans for lapsed requests
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration, hide = true)]
    pub sweep_every: Duration,
    /// Interval between scans of the outbox, for effects of other nodes and for retries
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration, hide = true)]
    pub poll_every: Duration,
}

impl Config {
    /// Returns the rules for charges: how long a worker may hold one, and what to do if its response is lost. The latter
    /// depends on what the processor can do. Rides follow the same rules.
    pub fn charge_rules(&self) -> EffectRules {
        let ms = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        EffectRules::default().with(|rules| {
            rules.lease_ms = ms(self.lease);
            match self.verify_after {
                Some(settle) => (rules.safety, rules.settle_ms) = (Safety::Verified, ms(settle)),
                None if self.charge_once => rules.safety = Safety::Once,
                None => rules.safety = Safety::Repeatable,
            }
        })
    }
}

/// Parses durations such as `250ms`, `5s` or `15m`.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>().map_err(|error| error.to_string())?;
    let length = Duration::try_from(parsed).ok().filter(|length| !length.is_zero());
    length.ok_or_else(|| "must be longer than zero".to_owned())
}

fn hook_secret(text: &str) -> Result<HookSecret, HookSecretError> {
    HookSecret::parse(&SignatureScheme::Standard, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Config::command().debug_assert();
    }

    #[test]
    fn durations_have_a_unit_and_are_positive() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("24h"), Ok(Duration::from_secs(86_400)));
        for text in ["", "5", "s", "0s", "-1s", "18446744073709551615h"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }
}
