//! Removes what is past its time, in steps small enough for the foreground not to feel.
//!
//! A record is stripped when replay ends and removed when its tombstone does; Effects and history outlive it for as long
//! as [`Retention`] says. Each step adapts to how long the last one kept others waiting, and is followed by a pause in
//! proportion to it. Any number of reapers may be at it: each row goes once.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ibid_core::change::Commit;
use ibid_core::machine::{self, Event, Verdict};
use ibid_core::reap::{CURSOR_START, ReapCount, ReapStep, ReapTarget};
use ibid_core::record::State;
use ibid_core::store::{Store, StoreError};
use metrics::{counter, gauge};
use tokio::time::{Instant, sleep};

use super::unknown::expire_unknown;
use crate::engine::GiveUp;
use crate::ibid::Ibid;
use crate::random::nonce;
use crate::telemetry;

/// How long is kept what outlives its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Effects that are done or discarded, counted from then. Others are never removed.
    pub effects: Duration,
    /// Lines of history, counted from when they were written. Those of a record that is still there stay with it.
    pub history: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Retention {
            // A customer's complaint and a month's closing ask whether a mail or a payout was sent.
            effects: Duration::from_secs(30 * DAY),
            // A yearly audit, and a month to do it in.
            history: Duration::from_secs(400 * DAY),
        }
    }
}

/// What a round of the reaper came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReapStats {
    /// Accepted and never claimed, now `completed` with 408; and unknown outcomes past `unknown_retention`, now expired.
    pub settled: u64,
    /// Records that became tombstones.
    pub stripped: u64,
    /// Records that are gone.
    pub removed: u64,
    /// Effects that are gone.
    pub effects: u64,
    /// Lines of history that are gone.
    pub history: u64,
    /// Pages of a file that were given back to the system.
    pub pages: u64,
    /// Records that are past their time and stay, because rows of the application refer to them and forbid it.
    pub held: u64,
    /// Whether the round ended before the work did: the next goes on.
    pub unfinished: bool,
}

/// What a round of the reaper would find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReapPreview {
    /// Records that would become tombstones, and records that would go.
    pub records: ReapCount,
    /// Effects that would go.
    pub effects: u64,
    /// Lines of history that would go.
    pub history: u64,
}

/// One round of the reaper. What fails keeps nothing else from being done; the first failure is told at the end.
pub async fn reap_once(ibid: &Ibid, keep: Retention) -> Result<ReapStats, StoreError> {
    let settled = settle_unclaimed(ibid).await;
    let outlived = expire_unknown(&**ibid.store()).await;
    let bounds = RoundLimits { until: Instant::now() + ROUND_FOR_MAX, places: &ibid.upkeep().places };
    let harvest = round(&**ibid.store(), keep, Some(&bounds), |_| {}).await;
    // Counting walks the whole table on some stores, so it goes with the rarer chore.
    let counted = count_records(ibid).await;
    let (settled, harvest) = (settled?, harvest?);
    counted?;
    Ok(ReapStats { settled: settled + outlived?, ..harvest })
}

/// Reaps a store that this process only looks after, to the end however long it takes; `told` hears after every step how
/// far it came.
pub async fn reap_store(
    store: &dyn Store,
    keep: Retention,
    told: impl FnMut(&ReapStats),
) -> Result<ReapStats, StoreError> {
    let settled = answer_unclaimed(store).await;
    let outlived = expire_unknown(store).await;
    let harvest = round(store, keep, None, told).await;
    let (settled, harvest) = (settled?, harvest?);
    Ok(ReapStats { settled: settled + outlived?, ..harvest })
}

/// What ends a round before the work is done, and where the next goes on.
struct RoundLimits<'a> {
    until: Instant,
    places: &'a ReapCursors,
}

async fn round(
    store: &dyn Store,
    keep: Retention,
    bounds: Option<&RoundLimits<'_>>,
    mut told: impl FnMut(&ReapStats),
) -> Result<ReapStats, StoreError> {
    let (mut harvest, mut result) = (ReapStats::default(), Ok(()));
    for course in reap_targets(keep) {
        let step = |reaped: &ReapStep| {
            harvest.add(course, reaped);
            told(&harvest);
        };
        let done = reap_target(store, course, bounds, step).await;
        harvest.unfinished |= matches!(done, Ok(false));
        result = result.and(done.map(drop));
    }
    if harvest.held > 0 {
        let held = harvest.held;
        tracing::warn!(held, "records are past their time, and rows that refer to them forbid that they go");
    }
    result.map(|()| harvest)
}

/// One course to its end, or at least one step on it. Whether it came to its end, for this round.
async fn reap_target(
    store: &dyn Store,
    course: ReapTarget,
    bounds: Option<&RoundLimits<'_>>,
    mut step: impl FnMut(&ReapStep),
) -> Result<bool, StoreError> {
    let place = bounds.and_then(|bounds| bounds.places.of(course));
    let mut from = place.map_or(CURSOR_START, |place| place.load(Ordering::Relaxed));
    let (mut pace, mut stayed) = (Pacer::of(store), 0);
    loop {
        let reaped = store.reap(course, from, pace.batch).await?;
        step(&reaped);
        if let Some(place) = place {
            place.store(reaped.next.unwrap_or(CURSOR_START), Ordering::Relaxed);
        }
        let Some(next) = reaped.next else { return Ok(true) };
        if let Some(bounds) = bounds {
            if matches!(course, ReapTarget::Effects { .. } | ReapTarget::History { .. }) {
                stayed += u64::from(pace.batch).saturating_sub(reaped.removed);
            }
            if stayed >= SKIPPED_MAX {
                return Ok(true);
            }
            if Instant::now() >= bounds.until {
                return Ok(false);
            }
        }
        from = next;
        sleep(pace.after(reaped.took)).await;
    }
}

/// How far this process has come along what is in the order of time and may have to stay where it is: an Effect and a line
/// while their record does, a record while the application holds it. Every round goes on there, and at the end begins
/// again: otherwise each would look at all of it, and what is behind too much for one round would never be reached.
#[derive(Debug)]
pub(crate) struct ReapCursors {
    records: AtomicI64,
    effects: AtomicI64,
    history: AtomicI64,
}

impl Default for ReapCursors {
    fn default() -> Self {
        let start = || AtomicI64::new(CURSOR_START);
        ReapCursors { records: start(), effects: start(), history: start() }
    }
}

impl ReapCursors {
    fn of(&self, course: ReapTarget) -> Option<&AtomicI64> {
        match course {
            ReapTarget::Records => Some(&self.records),
            ReapTarget::Effects { .. } => Some(&self.effects),
            ReapTarget::History { .. } => Some(&self.history),
            ReapTarget::Room => None,
        }
    }
}

/// What [`reap_store`] would find; it touches nothing.
pub async fn reap_preview(store: &dyn Store, keep: Retention) -> Result<ReapPreview, StoreError> {
    let [records, effects, history, _] = reap_targets(keep);
    Ok(ReapPreview {
        records: store.count_reapable(records).await?,
        effects: store.count_reapable(effects).await?.remove,
        history: store.count_reapable(history).await?.remove,
    })
}

/// Records first: an Effect and a line of history may go once their record has.
fn reap_targets(keep: Retention) -> [ReapTarget; 4] {
    let Retention { effects, history } = keep;
    [
        ReapTarget::Records,
        ReapTarget::Effects { keep: effects },
        ReapTarget::History { keep: history },
        ReapTarget::Room,
    ]
}

impl ReapStats {
    fn add(&mut self, course: ReapTarget, reaped: &ReapStep) {
        match course {
            ReapTarget::Records => {
                self.stripped += reaped.stripped;
                self.removed += reaped.removed;
                self.held += reaped.held;
                counter!(telemetry::RETENTION_PRUNED).increment(reaped.removed);
            }
            ReapTarget::Effects { .. } => self.effects += reaped.removed,
            ReapTarget::History { .. } => self.history += reaped.removed,
            ReapTarget::Room => self.pages += reaped.removed,
        }
    }
}

/// How many rows the next step takes.
struct Pacer {
    batch: u32,
    batch_max: u32,
    /// The pause after a step in parts of what it took.
    pause: u32,
}

impl Pacer {
    fn of(store: &dyn Store) -> Pacer {
        let (batch_max, pause) = match store.shares_commits() {
            true => (BATCH_MAX_SHARED, PAUSE_PARTS_SHARED),
            false => (BATCH_MAX, PAUSE_PARTS),
        };
        Pacer { batch: BATCH_FIRST, batch_max, pause }
    }

    /// Learns from a step that took so long, and says how long to leave the store to others.
    fn after(&mut self, took: Duration) -> Duration {
        let ratio = STEP_FOR.as_secs_f64() / took.as_secs_f64().max(f64::EPSILON);
        // By no more than a factor of two: one step may have met a checkpoint, or nothing at all.
        let batch = f64::from(self.batch) * ratio.clamp(0.5, 2.0);
        self.batch = (batch as u32).clamp(BATCH_MIN, self.batch_max);
        took.saturating_mul(self.pause).min(PAUSE_MAX)
    }
}

/// Answers what was accepted and never claimed: by the engine, so that whoever waits for one in this process is woken.
async fn settle_unclaimed(ibid: &Ibid) -> Result<u64, StoreError> {
    let mut settled = 0;
    for stored in ibid.store().due(State::Pending, PENDING_BATCH).await? {
        let settlement = ibid
            .engine()
            .write_until_done(Some(stored), GiveUp::Soon, |nonce| Event::NeverClaimed { nonce })
            .await;
        settled += u64::from(settlement.decision == machine::Decision::Settled);
    }
    Ok(settled)
}

/// The same without an engine, batch after batch until one holds nothing to answer.
async fn answer_unclaimed(store: &dyn Store) -> Result<u64, StoreError> {
    let mut settled = 0;
    loop {
        let before = settled;
        for stored in store.due(State::Pending, PENDING_BATCH).await? {
            let event = Event::NeverClaimed { nonce: nonce() };
            let Verdict::Write(change, _) = machine::decide(Some(&stored.record), &event, stored.now) else {
                continue;
            };
            // Whoever claimed it meanwhile has it.
            if let Some(fate) = store.commit(vec![change]).await.pop() {
                settled += u64::from(matches!(fate?, Commit::Done(_)));
            }
        }
        if settled == before {
            return Ok(settled);
        }
    }
}

async fn count_records(ibid: &Ibid) -> Result<(), StoreError> {
    let counts = ibid.store().count().await?;
    for (state, count) in State::ALL.into_iter().zip(counts.by_state) {
        gauge!(telemetry::RECORDS, "state" => state.name()).set(count as f64);
    }
    let unknown = State::ALL.into_iter().zip(counts.oldest).find(|(state, _)| *state == State::Unknown);
    let since = unknown.and_then(|(_, since)| since).unwrap_or_default();
    gauge!(telemetry::OLDEST_UNKNOWN).set(since.as_secs_f64());
    for (kind, letters) in [("records", counts.dead_letters), ("effects", counts.dead_effects)] {
        gauge!(telemetry::DEAD_LETTERS, "kind" => kind).set(letters as f64);
    }
    Ok(())
}

/// Accepted records read at once.
const PENDING_BATCH: u32 = 256;

/// What one step should take: about as long as the flush of a commit, so that whoever meets it waits for two instead of
/// one.
const STEP_FOR: Duration = Duration::from_millis(5);

/// Rows of the first step, before anything was learnt: some milliseconds on a slow disk.
const BATCH_FIRST: u32 = 64;

/// Rows of a step at least. Below this its flush is most of its price, and the reaper would fall behind.
const BATCH_MIN: u32 = 32;

/// Rows of a step at most, however fast the store is: one that becomes slow all at once must not be caught in a long one.
const BATCH_MAX: u32 = 1000;

/// The same where one writer serves all: whoever meets a step waits for the whole of it.
const BATCH_MAX_SHARED: u32 = 100;

/// The pause after a step in parts of what it took: the reaper has a fifth of the store's time at most. With two parts, a
/// third, the foreground's p99 on PostgreSQL was 1.7 times what it is without (two cores, both busy).
const PAUSE_PARTS: u32 = 4;

/// The same where one writer serves all: a tenth. Each row that goes writes about as many pages as one that comes.
const PAUSE_PARTS_SHARED: u32 = 9;

/// A store that is this slow has other troubles; the reaper need not sleep through them.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long a round lasts at most: after it what was accepted is looked at again and the gauges are set anew, and the next
/// round goes on.
const ROUND_FOR_MAX: Duration = Duration::from_secs(60);

/// Effects or lines that one round looks at and leaves: a tenth of a second's work, and a day's round over ten million.
const SKIPPED_MAX: u64 = 10_000;

const DAY: u64 = 24 * 3600;

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn the_next_round_continues_behind_held_records() {
        use crate::store::sqlite::{SqliteOptions, SqliteStore};
        use ibid_core::change::Draft;
        use ibid_testkit::contract::{TestRecord, draft, insert, put};

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ibid.db");
        let store = SqliteStore::open(&path, SqliteOptions::default()).expect("it opens");
        for _ in 0..3 * BATCH_FIRST {
            let name = TestRecord::fresh();
            let going = Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) };
            put(&store, &insert(&name, going)).await;
        }
        let theirs = rusqlite::Connection::open(&path).expect("it opens for others too");
        let held = format!(
            "create table payment (record blob references ibid_record (id));
             update ibid_record set purge_at = row, expires_at = null;
             insert into payment select id from ibid_record order by row limit {}",
            3 * BATCH_FIRST - 10
        );
        theirs.execute_batch(&held).expect("payments");
        let places = ReapCursors::default();
        // No time at all: one step on each course.
        let bounds = RoundLimits { until: Instant::now(), places: &places };
        let (mut removed, mut held) = (0, 0);
        for _ in 0..5 {
            let harvest = round(&store, Retention::default(), Some(&bounds), |_| {}).await.expect("a round");
            (removed, held) = (removed + harvest.removed, held + harvest.held);
            if !harvest.unfinished {
                break;
            }
        }
        assert_eq!((removed, held), (10, u64::from(3 * BATCH_FIRST - 10)), "to the end, and each once");
        let again = round(&store, Retention::default(), Some(&bounds), |_| {}).await.expect("a round");
        assert!(again.held > 0 && again.unfinished, "from the start again: {again:?}");
    }

    #[test]
    fn a_slow_step_is_followed_by_a_smaller_one_and_a_longer_pause() {
        let mut pace = Pacer { batch: 400, batch_max: BATCH_MAX, pause: PAUSE_PARTS };
        assert_eq!(pace.after(Duration::from_millis(50)), Duration::from_millis(200));
        assert_eq!(pace.batch, 200, "by half at most");
        assert_eq!(pace.after(Duration::from_millis(5)), Duration::from_millis(20));
        assert_eq!(pace.batch, 200, "as it should be");
        pace.after(Duration::from_millis(4));
        assert_eq!(pace.batch, 250, "in proportion");
        for _ in 0..20 {
            pace.after(Duration::from_secs(9));
        }
        assert_eq!((pace.batch, pace.after(Duration::from_secs(9))), (BATCH_MIN, PAUSE_MAX));
        for _ in 0..20 {
            pace.after(Duration::ZERO);
        }
        assert_eq!(pace.batch, BATCH_MAX);
    }
}
