//! How long runs took, out of records that a store kept: for whoever chooses a lease. Pure: rows in, figures out.

use std::collections::BTreeMap;
use std::time::Duration;

use ibid_core::policy::Policy;
use ibid_core::record::{Flags, RecordDetails, State};

/// Runs under one set of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    /// One of the operations that they were of: records do not keep the route's pattern.
    pub example: String,
    /// Whether there were others.
    pub has_others: bool,
    /// How many were looked at.
    pub count: u64,
    /// All but one in a hundred took no longer.
    pub p99: Duration,
    /// The lease that they had.
    pub lease: Duration,
}

/// What is read of one record.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) policy: i64,
    pub(super) state: u8,
    pub(super) flags: u8,
    pub(super) ran_at: Option<i64>,
    pub(super) completed_at: Option<i64>,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) note: Option<String>,
}

/// The policies of a store, and which records tell how long runs under them take.
#[derive(Debug)]
pub(super) struct Sampling(BTreeMap<i64, Policy>);

impl Sampling {
    /// Of these policies. What can't be read is of a later ibid, and left out.
    pub(super) fn of(policies: impl IntoIterator<Item = (i64, Vec<u8>)>) -> Sampling {
        let read = |(number, data): (i64, Vec<u8>)| Some((number, Policy::from_bytes(&data)?));
        Sampling(policies.into_iter().filter_map(read).collect())
    }

    /// How long after its completion an answer goes, in microseconds; each value once. Those of them that completed last
    /// (on PostgreSQL: were begun last) are the last to go: the index that the reaper reads finds them.
    pub(super) fn kept_for(&self) -> Vec<i64> {
        let kept = |policy: &Policy| i64::try_from(policy.retention.as_micros()).unwrap_or(i64::MAX);
        let mut all: Vec<i64> = self.0.values().map(kept).collect();
        all.sort_unstable();
        all.dedup();
        all.truncate(KEPT_MAX);
        all
    }

    /// The figures, one for each policy that there are runs of. A record may be given twice.
    pub(super) fn figures(&self, rows: Vec<Row>) -> Vec<Runs> {
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
            Some(Runs {
                example: format!("{} {}", first.0, first.1),
                has_others: (&first.0, &first.1) != (&last.0, &last.1),
                count: took.len() as u64,
                p99: Duration::from_micros(took[rank - 1].cast_unsigned()),
                lease: self.0.get(&policy)?.lease,
            })
        };
        by_policy.into_iter().filter_map(figure).collect()
    }

    /// When it ran and for how long, if it ran once and to its end. What lapsed, was reconciled or was owed by an effect
    /// took as long as others took to notice; so did what seems to have run for longer than it may.
    fn took(&self, row: &Row) -> Option<(i64, i64)> {
        let flags = Flags::from_bits(row.flags);
        let note = RecordDetails::from_json(row.note.as_deref(), None)?;
        let took = row.completed_at?.checked_sub(row.ran_at?)?;
        let max = i64::try_from(self.0.get(&row.policy)?.max_run.as_micros()).unwrap_or(i64::MAX);
        let counts = row.state == State::Completed.code()
            && !flags.owed
            && !flags.asynchronous
            && (note.lapses, note.tries) == (0, 0)
            && (0..=max).contains(&took);
        counts.then_some((row.ran_at?, took))
    }
}

/// A store has one or two periods; past this somebody makes new ones all the time.
const KEPT_MAX: usize = 16;

/// Records that are looked at for each period: enough for a p99, and some milliseconds' work.
pub(super) const SAMPLE_MAX: i64 = 2000;

/// Policies that are looked at.
pub(super) const POLICIES_MAX: i64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(path: &str, took_ms: i64) -> Row {
        Row {
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

    fn sampling() -> Sampling {
        Sampling::of([(7, Policy::default().to_bytes()), (8, b"later".to_vec())])
    }

    #[test]
    fn the_p99_is_that_of_runs_that_came_to_their_end_once() {
        let mut rows: Vec<Row> = (1..=200).map(|ms| row("/a", ms)).collect();
        rows.push(row("/a", 3));
        rows.push(Row { state: State::Unknown.code(), ..row("/a", 90_000) });
        rows.push(Row {
            note: RecordDetails { lapses: 1, ..RecordDetails::default() }.to_json(),
            ..row("/a", 90_001)
        });
        rows.push(Row { ran_at: None, ..row("/a", 90_002) });
        rows.push(row("/a", 16 * 60_000));
        rows.push(Row { policy: 9, ..row("/a", 90_003) });
        let figures = sampling().figures(rows);
        let Policy { lease, .. } = Policy::default();
        let example = "POST /a".to_owned();
        assert_eq!(
            figures,
            [Runs { example, has_others: false, count: 200, p99: Duration::from_millis(198), lease }]
        );
    }

    #[test]
    fn few_runs_have_their_longest_as_p99_and_none_have_no_figure() {
        let figures = sampling().figures(vec![row("/a", 5), row("/b", 9)]);
        assert_eq!((figures[0].p99, figures[0].has_others), (Duration::from_millis(9), true));
        assert!(sampling().figures(Vec::new()).is_empty());
        assert_eq!(sampling().kept_for().len(), 1);
    }
}
