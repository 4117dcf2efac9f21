//! What goes wrong at the processor, and when: a list that a person writes and dice that fall the same way twice.
//!
//! It decides only; `charges` carries out what was decided.

use std::collections::HashMap;
use std::time::Duration;

use crate::args::parse_duration;

/// What goes wrong with one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
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

/// When a fault happens.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// With this probability.
    Chance(f64),
    /// At every nth request.
    Every(u64),
    /// At the first request of each key.
    First,
}

/// All that may go wrong, in the order in which it is tried. One request has one fault at most.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults(Vec<(Fault, When)>);

/// A list of faults that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultsError {
    /// Not `name=when`.
    #[error("`{0}` is not `name=when`, such as `timeout=0.1`")]
    Form(String),
    /// No such fault.
    #[error("`{0}` is no fault: there are timeout, reset, error, late, refuse and busy")]
    Name(String),
    /// Neither a probability nor a rhythm.
    #[error("`{0}` is neither a probability (`0.1`) nor `every-N` nor `first`")]
    When(String),
    /// A duration where none is taken, or none that can be read.
    #[error("`{0}` takes no duration, or not this one: `late=0.1:300ms`, `busy=0.1:2s`")]
    Duration(String),
    /// Together they are more than certain.
    #[error("the probabilities add up to more than 1")]
    Sum,
}

impl Faults {
    /// Reads `timeout=0.1,reset=every-3,late=first:300ms`. Nothing means that nothing goes wrong.
    pub fn parse(spec: &str) -> Result<Faults, FaultsError> {
        let parts = spec.split(',').map(str::trim).filter(|part| !part.is_empty());
        let faults = parts.map(parse_one).collect::<Result<Vec<_>, _>>()?;
        let sum: f64 = faults.iter().map(|(_, when)| if let When::Chance(p) = when { *p } else { 0.0 }).sum();
        // Ten times 0.1 is a little more than 1 in binary.
        if sum > 1.0 + 1e-9 {
            return Err(FaultsError::Sum);
        }
        Ok(Faults(faults))
    }
}

fn parse_one(part: &str) -> Result<(Fault, When), FaultsError> {
    let (name, rest) = part.split_once('=').ok_or_else(|| FaultsError::Form(part.to_owned()))?;
    let (when, length) = match rest.split_once(':') {
        Some((when, length)) => (when, Some(length)),
        None => (rest, None),
    };
    let no_duration = || FaultsError::Duration(name.to_owned());
    let length = length.map(|text| parse_duration(text).map_err(|_| no_duration())).transpose()?;
    let fault = match (name, length) {
        ("timeout", None) => Fault::Timeout,
        ("reset", None) => Fault::Reset,
        ("error", None) => Fault::Error,
        ("refuse", None) => Fault::Refuse,
        ("late", length) => Fault::Late(length.unwrap_or(LATE_FOR)),
        ("busy", length) => Fault::Busy(length.unwrap_or(RETRY_AFTER)),
        ("timeout" | "reset" | "error" | "refuse", Some(_)) => return Err(no_duration()),
        _ => return Err(FaultsError::Name(name.to_owned())),
    };
    Ok((fault, parse_when(when).ok_or_else(|| FaultsError::When(when.to_owned()))?))
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

/// The faults of one run, request by request.
#[derive(Debug)]
pub struct Dice {
    faults: Faults,
    state: u64,
    requests: u64,
    /// Requests per key, kept only if a fault asks for it.
    tries: HashMap<String, u64>,
}

impl Dice {
    /// From the beginning.
    pub fn new(faults: Faults, seed: u64) -> Dice {
        Dice { faults, state: seed, requests: 0, tries: HashMap::new() }
    }

    /// What goes wrong with the next request, which carries this key.
    pub fn roll(&mut self, key: &str) -> Option<Fault> {
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

    /// How many rolls there were.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    fn is_first(&mut self, key: &str) -> bool {
        let tries = self.tries.entry(key.to_owned()).or_default();
        *tries += 1;
        *tries == 1
    }

    /// SplitMix64, as a number from 0 to 1 without 1: small, well spread, and the same on every machine.
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

/// Longer than a person waits gladly, shorter than clients give up.
const LATE_FOR: Duration = Duration::from_millis(300);

/// The shortest that `Retry-After` can say, so that tests are short too.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn rolls(spec: &str, seed: u64, keys: &[&str]) -> Vec<Option<Fault>> {
        let mut dice = Dice::new(Faults::parse(spec).unwrap(), seed);
        keys.iter().map(|key| dice.roll(key)).collect()
    }

    #[test]
    fn the_same_seed_falls_the_same_way_and_another_does_not() {
        let spec = "timeout=0.2,reset=0.2,error=0.2,busy=0.1:2s";
        let keys = ["a"; 64];
        assert_eq!(rolls(spec, 7, &keys), rolls(spec, 7, &keys));
        assert_ne!(rolls(spec, 7, &keys), rolls(spec, 8, &keys));
    }

    #[test]
    fn each_fault_comes_as_often_as_it_was_asked_for() {
        let all = rolls("timeout=0.1,error=0.3,refuse=0", 1, &["a"; 10_000]);
        let count = |fault| all.iter().filter(|rolled| **rolled == fault).count();
        assert!((900..1100).contains(&count(Some(Fault::Timeout))));
        assert!((2850..3150).contains(&count(Some(Fault::Error))));
        assert_eq!(count(Some(Fault::Refuse)), 0);
        assert!(rolls("reset=1", 1, &["a"; 100]).iter().all(|rolled| *rolled == Some(Fault::Reset)));
    }

    #[test]
    fn rhythms_count_requests_and_first_counts_by_key() {
        let reset = Some(Fault::Reset);
        assert_eq!(rolls("reset=every-3", 1, &["a"; 6]), [None, None, reset, None, None, reset]);
        assert_eq!(rolls("reset=first", 1, &["a", "b", "a", "b", "c"]), [reset, reset, None, None, reset]);
        let mixed = rolls("reset=first,busy=every-2", 1, &["a", "b", "a", "a"]);
        assert_eq!(mixed, [reset, reset, None, Some(Fault::Busy(Duration::from_secs(1)))]);
    }

    #[test]
    fn a_list_that_means_nothing_is_refused_by_its_word() {
        use FaultsError::{Duration as Length, Form, Name, Sum, When};
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
            assert_eq!(Faults::parse(spec), Err(error), "{spec}");
        }
        assert_eq!(Faults::parse(" "), Ok(Faults::default()));
        assert!(Faults::parse(&["late=0.1"; 10].join(", ")).is_ok());
    }
}
