//! Compares leases with the duration of runs. Pure: figures in, one finding out.

use std::time::Duration;

use ibid::store::run_times::RunTimes;

use super::findings::{Finding, Grade, line};
use crate::config::units::show_duration;

/// Checks that every lease is long enough for the runs under it.
pub(super) fn of(runs: Option<&[RunTimes]>) -> Finding {
    let check = "lease";
    let Some(runs) = runs else {
        return line(check, Grade::Unseen, "not looked at", "the tables are not as they should be");
    };
    let mut known: Vec<&RunTimes> = runs.iter().filter(|runs| runs.count >= RUNS_MIN).collect();
    // The tightest lease first.
    known.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)));
    let tight: Vec<&RunTimes> =
        known.iter().copied().filter(|runs| runs.lease < runs.p99 * TIMES_MIN).collect();
    match (&tight[..], known.first()) {
        ([], None) => {
            let facts = format!("fewer than {RUNS_MIN} runs of any policy");
            line(check, Grade::Unseen, facts, "nothing to compare leases with yet")
        }
        ([], Some(tightest)) => {
            line(check, Grade::Ok, describe(tightest), "at least three times what runs take")
        }
        (tight, _) => {
            let facts = tight.iter().map(|runs| describe(runs)).collect::<Vec<_>>().join("; ");
            let wanted = tight.iter().map(|runs| runs.p99 * TIMES_MIN).max().unwrap_or_default();
            // Whole seconds, rounded up: 14.1 s would be an odd setting.
            let wanted = Duration::from_secs(wanted.as_millis().div_ceil(1000) as u64);
            let meaning = format!(
                "such runs live by renewals alone, and a pause of the store or the node ends in `unknown`: set `lease` to \
                 {} or more",
                show_duration(wanted)
            );
            line(check, Grade::Warning, facts, meaning)
        }
    }
}

fn describe(runs: &RunTimes) -> String {
    let RunTimes { example, has_others, count, p99, lease } = runs;
    let others = if *has_others { " and others" } else { "" };
    let lease = show_duration(*lease);
    format!("`{example}`{others}: lease {lease}, p99 {} ms of {count} runs", p99.as_millis())
}

fn ratio(runs: &RunTimes) -> f64 {
    runs.p99.as_secs_f64() / runs.lease.as_secs_f64().max(f64::MIN_POSITIVE)
}

/// Least ratio of lease to p99. An attempt renews at a third of the lease, so it may miss one renewal and still has time
/// for the next.
const TIMES_MIN: u32 = 3;

/// Least number of runs to judge by. With fewer, the longest says more about one bad moment than about the route.
const RUNS_MIN: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(count: u64, p99_ms: u64, lease_s: u64) -> RunTimes {
        RunTimes {
            example: format!("POST /{p99_ms}"),
            has_others: false,
            count,
            p99: Duration::from_millis(p99_ms),
            lease: Duration::from_secs(lease_s),
        }
    }

    #[test]
    fn a_lease_below_three_times_the_p99_is_warned_of() {
        let finding = of(Some(&[runs(100, 21_000, 60), runs(500, 40, 60)]));
        assert_eq!(finding.grade, Grade::Warning);
        assert_eq!(finding.found, "`POST /21000`: lease 60s, p99 21000 ms of 100 runs");
        assert!(finding.meaning.contains("set `lease` to 63s or more"), "{}", finding.meaning);
        let finding = of(Some(&[runs(100, 20_000, 60), runs(100, 10, 60)]));
        assert_eq!(
            (finding.grade, finding.found.as_str()),
            (Grade::Ok, "`POST /20000`: lease 60s, p99 20000 ms of 100 runs")
        );
    }

    #[test]
    fn too_few_runs_say_nothing() {
        assert_eq!(of(Some(&[runs(RUNS_MIN - 1, 21_000, 60)])).grade, Grade::Unseen);
        assert_eq!(of(Some(&[])).grade, Grade::Unseen);
        assert_eq!(of(None).grade, Grade::Unseen);
    }
}
