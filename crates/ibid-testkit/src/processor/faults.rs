//! Decides which request gets which fault: parses the list of faults and draws from a seed. `pages` applies the faults.

use std::collections::HashMap;
use std::time::Duration;

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChargeFault {
    /// Charge, then say nothing until the client gives up.
    Timeout,
    /// Charge, then reset the TCP connection.
    Reset,
    /// Charge, then answer 500.
    Error,
    /// Charge, and answer after a while.
    Late(Duration),
    /// Answer 500 without charging.
    Refuse,
    /// Answer 503 or 429, in turns, with `Retry-After`, without charging.
    Busy(Duration),
}

/// Frequency of a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// At any request, with this probability.
    Chance(f64),
    /// At every nth request.
    Every(u64),
    /// At the first request of each key.
    First,
}

/// Faults of a [`CardProcessor`](super::CardProcessor), in the order in which they are tried. A request has one at most.
///
/// | name | what the client sees | charged |
/// | --- | --- | --- |
/// | `timeout` | no response until it gives up | yes |
/// | `reset` | a TCP reset | yes |
/// | `error` | 500 | yes |
/// | `late` | the response after a delay (300ms) | yes |
/// | `refuse` | 500, the same as for `error` | no |
/// | `busy` | 503 and 429 in turns, with `Retry-After` (1s) | no |
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChargeFaults(Vec<(ChargeFault, When)>);

/// Error in a list of faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChargeFaultsError {
    /// An item is not `name=when`.
    #[error("`{0}` is not `name=when`, such as `timeout=0.1`")]
    Form(String),
    /// The name of no fault.
    #[error("`{0}` is no fault: there are timeout, reset, error, late, refuse and busy")]
    Name(String),
    /// A value that is no frequency.
    #[error("`{0}` is neither a probability (`0.1`) nor `every-N` nor `first`")]
    When(String),
    /// A duration where none is allowed, or not a duration.
    #[error("`{0}` takes no duration, or not this one: `late=0.1:300ms`, `busy=0.1:2s`")]
    Duration(String),
    /// The probabilities add up to more than 1.
    #[error("the probabilities add up to more than 1")]
    Sum,
}

impl ChargeFaults {
    /// Parses `timeout=0.1,reset=every-3,late=first:300ms`. An empty text means no faults.
    ///
    /// A frequency is a probability, `every-N` (every Nth request) or `first` (the first request of each key).
    ///
    /// # Errors
    ///
    /// Fails if a name, frequency or duration is unknown, or the probabilities add up to more than 1.
    pub fn parse(spec: &str) -> Result<ChargeFaults, ChargeFaultsError> {
        let parts = spec.split(',').map(str::trim).filter(|part| !part.is_empty());
        let faults = parts.map(parse_one).collect::<Result<Vec<_>, _>>()?;
        let sum: f64 = faults.iter().map(|(_, when)| if let When::Chance(p) = when { *p } else { 0.0 }).sum();
        // Ten times 0.1 is a little more than 1 in binary.
        if sum > 1.0 + 1e-9 {
            return Err(ChargeFaultsError::Sum);
        }
        Ok(ChargeFaults(faults))
    }
}

fn parse_one(part: &str) -> Result<(ChargeFault, When), ChargeFaultsError> {
    let (name, rest) = part.split_once('=').ok_or_else(|| ChargeFaultsError::Form(part.to_owned()))?;
    let (when, length) = match rest.split_once(':') {
        Some((when, length)) => (when, Some(length)),
        None => (rest, None),
    };
    let no_duration = || ChargeFaultsError::Duration(name.to_owned());
    let length = length.map(|text| parse_duration(text).ok_or_else(no_duration)).transpose()?;
    let fault = match (name, length) {
        ("timeout", None) => ChargeFault::Timeout,
        ("reset", None) => ChargeFault::Reset,
        ("error", None) => ChargeFault::Error,
        ("refuse", None) => ChargeFault::Refuse,
        ("late", length) => ChargeFault::Late(length.unwrap_or(LATE_FOR)),
        ("busy", length) => ChargeFault::Busy(length.unwrap_or(RETRY_AFTER)),
        ("timeout" | "reset" | "error" | "refuse", Some(_)) => return Err(no_duration()),
        _ => return Err(ChargeFaultsError::Name(name.to_owned())),
    };
    Ok((fault, parse_when(when).ok_or_else(|| ChargeFaultsError::When(when.to_owned()))?))
}

fn parse_duration(text: &str) -> Option<Duration> {
    text.parse::<jiff::SignedDuration>().ok()?.try_into().ok()
}

fn parse_when(text: &str) -> Option<When> {
    if text == "first" {
        return Some(When::First);
    }
    if let Some(n) = text.strip_prefix("every-") {
        return n.parse().ok().filter(|n| *n > 0).map(When::Every);
    }
    text.parse().ok().filter(|p| (0.0..=1.0).contains(p)).map(When::Chance)
}

/// Draws the fault of each request.
#[derive(Debug)]
pub(super) struct FaultDice {
    faults: ChargeFaults,
    state: u64,
    requests: u64,
    /// Requests per key, counted only if a fault needs it.
    tries: HashMap<String, u64>,
}

impl FaultDice {
    /// Starts from a seed.
    pub(super) fn new(faults: ChargeFaults, seed: u64) -> FaultDice {
        FaultDice { faults, state: seed, requests: 0, tries: HashMap::new() }
    }

    /// Returns the fault of the next request, which has this key.
    pub(super) fn roll(&mut self, key: &str) -> Option<ChargeFault> {
        self.requests += 1;
        // Drawn for every request, so that the nth one meets the same chance whatever the others met.
        let chance = self.draw();
        let asks_first = self.faults.0.iter().any(|(_, when)| *when == When::First);
        let is_first = asks_first && self.is_first(key);
        let mut below = 0.0;
        for (fault, when) in &self.faults.0 {
            let happens = match when {
                When::First => is_first,
                When::Every(n) => self.requests.is_multiple_of(*n),
                When::Chance(p) => {
                    below += p;
                    chance < below
                }
            };
            if happens {
                return Some(*fault);
            }
        }
        None
    }

    /// Returns the number of requests so far.
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    fn is_first(&mut self, key: &str) -> bool {
        let tries = self.tries.entry(key.to_owned()).or_default();
        *tries += 1;
        *tries == 1
    }

    /// Draws a number from 0 (inclusive) to 1 (exclusive) with SplitMix64: small, and the same on every machine.
    fn draw(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // 53 bits are what a double holds exactly.
        (z >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Long enough to notice, shorter than the time-outs of clients.
const LATE_FOR: Duration = Duration::from_millis(300);

/// The shortest `Retry-After`, so that tests are short too.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn rolls(spec: &str, seed: u64, keys: &[&str]) -> Vec<Option<ChargeFault>> {
        let mut dice = FaultDice::new(ChargeFaults::parse(spec).unwrap(), seed);
        keys.iter().map(|key| dice.roll(key)).collect()
    }

    #[test]
    fn faults_depend_on_the_seed_only() {
        let spec = "timeout=0.2,reset=0.2,error=0.2,busy=0.1:2s";
        let keys = ["a"; 64];
        assert_eq!(rolls(spec, 7, &keys), rolls(spec, 7, &keys));
        assert_ne!(rolls(spec, 7, &keys), rolls(spec, 8, &keys));
    }

    #[test]
    fn faults_occur_with_their_probability() {
        let all = rolls("timeout=0.1,error=0.3,refuse=0", 1, &["a"; 10_000]);
        let count = |fault| all.iter().filter(|rolled| **rolled == fault).count();
        assert!((900..1100).contains(&count(Some(ChargeFault::Timeout))));
        assert!((2850..3150).contains(&count(Some(ChargeFault::Error))));
        assert_eq!(count(Some(ChargeFault::Refuse)), 0);
        assert!(rolls("reset=1", 1, &["a"; 100]).iter().all(|rolled| *rolled == Some(ChargeFault::Reset)));
    }

    #[test]
    fn every_counts_requests_and_first_counts_keys() {
        let reset = Some(ChargeFault::Reset);
        assert_eq!(rolls("reset=every-3", 1, &["a"; 6]), [None, None, reset, None, None, reset]);
        assert_eq!(rolls("reset=first", 1, &["a", "b", "a", "b", "c"]), [reset, reset, None, None, reset]);
        let mixed = rolls("reset=first,busy=every-2", 1, &["a", "b", "a", "a"]);
        assert_eq!(mixed, [reset, reset, None, Some(ChargeFault::Busy(Duration::from_secs(1)))]);
    }

    #[test]
    fn a_list_that_means_nothing_is_refused_by_its_word() {
        use ChargeFaultsError::{Duration as Length, Form, Name, Sum, When};
        for (spec, error) in [
            ("timeout", Form("timeout".into())),
            ("explode=1", Name("explode".into())),
            ("timeout=2", When("2".into())),
            ("timeout=-0.1", When("-0.1".into())),
            ("timeout=NaN", When("NaN".into())),
            ("timeout=every-0", When("every-0".into())),
            ("timeout=0.1:3s", Length("timeout".into())),
            ("late=0.1:soon", Length("late".into())),
            ("late=0.6,busy=0.6", Sum),
        ] {
            assert_eq!(ChargeFaults::parse(spec), Err(error), "{spec}");
        }
        assert_eq!(ChargeFaults::parse(" "), Ok(ChargeFaults::default()));
        assert!(ChargeFaults::parse(&["late=0.1"; 10].join(", ")).is_ok());
    }
}
