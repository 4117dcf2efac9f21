//! Run times of recent requests, computed from stored records, so that `ibid doctor` can compare them with the lease. Pure: rows
//! in, figures out.

use std::collections::BTreeMap;
use std::time::Duration;

use ibid_core::policy::Policy;
use ibid_core::record::{Flags, RecordDetails, State};

/// Run times under one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTimes {
    /// One of the operations: records do not keep the route's pattern.
    pub example: String,
    /// `true` if there were runs of other operations, too.
    pub has_others: bool,
    /// Number of runs in the sample.
    pub count: u64,
    /// The 99th percentile of their times.
    pub p99: Duration,
    /// Lease of the policy.
    pub lease: Duration,
}

/// The columns of one record that run times are computed from.
#[derive(Debug)]
pub(super) struct RunRow {
    pub(super) policy: i64,
    pub(super) state: u8,
    pub(super) flags: u8,
    pub(super) ran_at: Option<i64>,
    pub(super) completed_at: Option<i64>,
    pub(super) method: String,
    pub(super) path: String,
    /// Details as JSON; `None` if all have their defaults.
    pub(super) note: Option<String>,
}

/// The policies of a store, by number.
#[derive(Debug)]
pub(super) struct RunSampler(BTreeMap<i64, Policy>);

impl RunSampler {
    /// Creates a sampler. A policy that can't be read is of a later version, and left out.
    pub(super) fn of(policies: impl IntoIterator<Item = (i64, Vec<u8>)>) -> RunSampler {
        let read = |(number, data): (i64, Vec<u8>)| Some((number, Policy::from_bytes(&data)?));
        RunSampler(policies.into_iter().filter_map(read).collect())
    }

    /// Returns the retentions of the policies in microseconds, each once. Of the records of one retention, those that were
    /// begun last are the last in the reaper's index, where PostgreSQL finds them.
    #[cfg(feature = "postgres")]
    pub(super) fn retentions(&self) -> Vec<i64> {
        let micros = |policy: &Policy| i64::try_from(policy.retention.as_micros()).unwrap_or(i64::MAX);
        let mut all: Vec<i64> = self.0.values().map(micros).collect();
        all.sort_unstable();
        all.dedup();
        all.truncate(RETENTIONS_MAX);
        all
    }

    /// Computes the figures of each policy that has runs. A record may be given twice.
    pub(super) fn figures(&self, rows: Vec<RunRow>) -> Vec<RunTimes> {
        let mut by_policy: BTreeMap<i64, BTreeMap<(String, String, i64), i64>> = BTreeMap::new();
        for row in rows {
            if let Some((ran_at, took)) = self.took(&row) {
                let runs = by_policy.entry(row.policy).or_default();
                runs.insert((row.method, row.path, ran_at), took);
            }
        }
        let figure = |(policy, runs): (i64, BTreeMap<(String, String, i64), i64>)| {
            let (first, last) = (runs.first_key_value()?.0, runs.last_key_value()?.0);
            let mut took: Vec<i64> = runs.values().copied().collect();
            took.sort_unstable();
            // The nearest rank: of fewer than a hundred, the longest.
            let rank = (took.len() * 99).div_ceil(100);
            Some(RunTimes {
                example: format!("{} {}", first.0, first.1),
                has_others: (&first.0, &first.1) != (&last.0, &last.1),
                count: took.len() as u64,
                p99: Duration::from_micros(took[rank - 1].cast_unsigned()),
                lease: self.0.get(&policy)?.lease,
            })
        };
        by_policy.into_iter().filter_map(figure).collect()
    }

    /// Returns when a record ran and for how long, if it ran once and to its end. A record that lapsed, was reconciled or waited for
    /// an effect took as long as upkeep took to notice; so did one that seems to have run for longer than `max_run`.
    fn took(&self, row: &RunRow) -> Option<(i64, i64)> {
        let flags = Flags::from_bits(row.flags);
        let note = RecordDetails::from_json(row.note.as_deref(), None)?;
        let took = row.completed_at?.checked_sub(row.ran_at?)?;
        let max = i64::try_from(self.0.get(&row.policy)?.max_run.as_micros()).unwrap_or(i64::MAX);
        let counts = row.state == State::FINAL.code()
            && !flags.owed
            && !flags.asynchronous
            && (note.lapses, note.tries) == (0, 0)
            && (0..=max).contains(&took);
        counts.then_some((row.ran_at?, took))
    }
}

/// A store has one or two retentions; a program with more generates them.
#[cfg(feature = "postgres")]
const RETENTIONS_MAX: usize = 16;

/// Records that are looked at, on PostgreSQL for each retention: enough for a p99, and some milliseconds' work.
pub(super) const SAMPLE_MAX: i64 = 2000;

/// Policies that are looked at, where they have a table.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub(super) const POLICIES_MAX: i64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(path: &str, took_ms: i64) -> RunRow {
        RunRow {
            policy: 7,
            state: State::Completed.code(),
            flags: 0,
            ran_at: Some(took_ms),
            completed_at: Some(took_ms + took_ms * 1000),
            method: "POST".to_owned(),
            path: path.to_owned(),
            note: None,
        }
    }

    fn sampler() -> RunSampler {
        RunSampler::of([(7, Policy::default().to_bytes()), (8, b"later".to_vec())])
    }

    #[test]
    fn the_p99_counts_runs_that_ended_at_once() {
        let mut rows: Vec<RunRow> = (1..=200).map(|ms| row("/a", ms)).collect();
        rows.push(row("/a", 3));
        rows.push(RunRow { state: State::Unknown.code(), ..row("/a", 90_000) });
        rows.push(RunRow {
            note: RecordDetails { lapses: 1, ..RecordDetails::default() }.to_json(),
            ..row("/a", 90_001)
        });
        rows.push(RunRow { ran_at: None, ..row("/a", 90_002) });
        rows.push(row("/a", 16 * 60_000));
        rows.push(RunRow { policy: 9, ..row("/a", 90_003) });
        let figures = sampler().figures(rows);
        let Policy { lease, .. } = Policy::default();
        let example = "POST /a".to_owned();
        assert_eq!(
            figures,
            [RunTimes { example, has_others: false, count: 200, p99: Duration::from_millis(198), lease }]
        );
    }

    #[test]
    fn few_runs_have_their_longest_as_p99() {
        let figures = sampler().figures(vec![row("/a", 5), row("/b", 9)]);
        assert_eq!((figures[0].p99, figures[0].has_others), (Duration::from_millis(9), true));
        assert!(sampler().figures(Vec::new()).is_empty());
        #[cfg(feature = "postgres")]
        assert_eq!(sampler().retentions().len(), 1);
    }
}
