//! Removes expired rows, in steps small enough that requests do not notice.
//!
//! A record is stripped to a tombstone when replay ends, and removed when the tombstone expires. Effects and history outlive
//! their record for as long as [`Retention`] says. Each step adapts its size to how long the last one blocked other writers,
//! and is followed by a pause in proportion to it. Any number of reapers may run at once: each row is removed once.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ibid_core::reap::{ReapCount, ReapStep, ReapTarget};
use ibid_core::record::State;
use ibid_core::store::{Cursor, RecordFilter, RowCount, Store, StoreError};
use metrics::{Gauge, counter, gauge};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::election::ElectionSlot;
use super::expire_unsettled::{OverdueCursors, settle_overdue};
use super::{run_round, while_elected};
use crate::ibid::Ibid;
use crate::telemetry;

/// Retention of rows that outlive their record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retention {
    /// Retention of effects, counted from when they were done or discarded. Other effects are never removed.
    pub effects: Duration,
    /// Retention of history lines, counted from when they were written. Lines of a record that still exists stay with it.
    pub history: Duration,
}

impl Retention {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Retention)) -> Retention {
        change(&mut self);
        self
    }
}

impl Default for Retention {
    fn default() -> Self {
        Retention {
            // Customer complaints and the monthly closing ask whether a mail or a payout was sent.
            effects: Duration::from_secs(30 * DAY),
            // A yearly audit, plus a month to do it in.
            history: Duration::from_secs(400 * DAY),
        }
    }
}

/// Counts of one round of the reaper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReapStats {
    /// Accepted records that were never claimed and are now `completed` with 408, plus unknown outcomes that expired after
    /// `unknown_retention`.
    pub settled: u64,
    /// Records that became tombstones.
    pub stripped: u64,
    /// Records that were removed.
    pub removed: u64,
    /// Effects that were removed.
    pub effects: u64,
    /// History lines that were removed.
    pub history: u64,
    /// Policies that were removed, because no record can name them any more.
    pub policies: u64,
    /// Pages of the database file that were returned to the file system.
    pub pages: u64,
    /// Expired records that stay, because rows of the application reference them.
    pub held: u64,
    /// `true` if the round ran out of time. The next round continues there.
    pub unfinished: bool,
}

/// Counts of the rows that a round of the reaper would strip or remove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReapPreview {
    /// Records that would become tombstones, and records that would be removed.
    pub records: ReapCount,
    /// Effects that would be removed.
    pub effects: u64,
    /// History lines that would be removed.
    pub history: u64,
}

/// Runs one round of the reaper, for about a minute at most. After the store's clock has leapt forward it removes nothing, for
/// as long as the leap was, a day at most; and nothing while the store's clock is more than ten minutes ahead of this node's.
///
/// # Errors
///
/// Fails if a part of the round did. The other parts still run, and the first failure is returned at the end.
///
/// # Cancel safety
///
/// Each row is removed or changed whole or not at all. If the future is dropped, the next round does the rest.
pub async fn reap_once(ibid: &Ibid, keep: Retention) -> Result<ReapStats, StoreError> {
    let ahead = ibid.engine().read_for_chore("read the clock", read_clock_ahead(&**ibid.store())).await?;
    if ahead.is_some() || ibid.engine().is_clock_ahead() {
        // Removed rows do not come back when the clock is set right again, and reaping late loses nothing.
        tracing::warn!(?ahead, "the store's clock is ahead or has leapt forward; nothing is reaped for now");
        return count_records(ibid).await.map(|()| ReapStats::default());
    }
    let settled = settle_overdue(&**ibid.store(), Some(&ibid.upkeep().cursors.overdue)).await;
    let limits = RoundLimits { length: ROUND_FOR_MAX, cursors: &ibid.upkeep().cursors };
    let stats = round(&**ibid.store(), keep, Some(&limits), |_| {}).await;
    let count = count_records(ibid).await;
    let (settled, stats) = (settled?, stats?);
    count?;
    Ok(ReapStats { settled, ..stats })
}

/// Reaps a store without an engine, from the start to the end, however long it takes. Calls `on_step` after every step with
/// the counts so far.
///
/// # Errors
///
/// Fails as [`reap_once`] does, and if the store's clock is more than ten minutes ahead of this node's: nothing is removed then.
///
/// # Cancel safety
///
/// Each row is removed or changed whole or not at all. If the future is dropped, the next round does the rest.
pub async fn reap_store(
    store: &dyn Store,
    keep: Retention,
    on_step: impl FnMut(&ReapStats),
) -> Result<ReapStats, StoreError> {
    if let Some(ahead) = read_clock_ahead(store).await? {
        let why = format!(
            "the store's clock is {} s ahead of this node's, and removed rows do not come back: set the clock that is wrong",
            ahead.as_secs()
        );
        return Err(StoreError::lasting(store.facts().name, "reap", why).unwritten());
    }
    let settled = settle_overdue(store, None).await;
    let stats = round(store, keep, None, on_step).await?;
    Ok(ReapStats { settled: settled?, ..stats })
}

/// Returns by how much the store's clock is ahead of this node's, if that is more than [`CLOCK_AHEAD_MAX`].
///
/// A process that starts after the store's clock has leapt sees no leap. The node's clock may be the wrong one, but here it can only
/// delay a removal. A store without a record, or that can't be browsed, tells no time.
async fn read_clock_ahead(store: &dyn Store) -> Result<Option<Duration>, StoreError> {
    let Some(browse) = store.browse() else { return Ok(None) };
    let first = browse.list(RecordFilter::default().with(|filter| filter.limit = 1)).await?;
    let Some(first) = first.items.first() else { return Ok(None) };
    // A node whose clock shows a time before 1970 waits, too.
    let node = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let store = Duration::from_micros(u64::try_from(first.now.as_micros()).unwrap_or_default());
    Ok(store.checked_sub(node).filter(|ahead| *ahead > CLOCK_AHEAD_MAX))
}

/// Length of a round, and the cursors from which it and the next one continue.
struct RoundLimits<'a> {
    length: Duration,
    cursors: &'a ReapCursors,
}

impl RoundLimits<'_> {
    /// Returns the part of the round that one target may take.
    fn share_of(&self, target: ReapTarget) -> Duration {
        let share = match target {
            ReapTarget::Records => RECORDS_FOR_MAX,
            ReapTarget::Effects { .. } => EFFECTS_FOR_MAX,
            ReapTarget::History { .. } => HISTORY_FOR_MAX,
            ReapTarget::Policies | ReapTarget::Room => REST_FOR_MAX,
        };
        share.min(self.length)
    }
}

async fn round(
    store: &dyn Store,
    keep: Retention,
    limits: Option<&RoundLimits<'_>>,
    mut on_step: impl FnMut(&ReapStats),
) -> Result<ReapStats, StoreError> {
    let (mut stats, mut result) = (ReapStats::default(), Ok(()));
    let started = Instant::now();
    let (mut are_records_left, mut is_other_left) = (false, false);
    for target in reap_targets(keep) {
        let add_step = |step: &ReapStep| {
            stats.add(target, step);
            on_step(&stats);
        };
        let limit = limits.map(|limits| (limits.cursors, Instant::now() + limits.share_of(target)));
        let finished = reap_target(store, target, limit, add_step).await;
        match target {
            ReapTarget::Records => are_records_left = matches!(finished, Ok(false)),
            _ => is_other_left |= matches!(finished, Ok(false)),
        }
        result = result.and(finished.map(drop));
    }
    // Records get what is left of the round, because most rows are theirs.
    let end = limits.map(|limits| (limits.cursors, started + limits.length));
    if are_records_left && end.is_some_and(|(_, end)| Instant::now() < end) {
        let add_step = |step: &ReapStep| {
            stats.add(ReapTarget::Records, step);
            on_step(&stats);
        };
        let finished = reap_target(store, ReapTarget::Records, end, add_step).await;
        are_records_left = matches!(finished, Ok(false));
        result = result.and(finished.map(drop));
    }
    stats.unfinished = are_records_left || is_other_left;
    if stats.held > 0 {
        tracing::warn!(held = stats.held, "expired records kept: application rows reference them");
    }
    result.map(|()| stats)
}

/// Reaps `target` step by step, at least one step, until no rows are left or its limit is reached: from a saved cursor, and until
/// an instant.
///
/// Returns `false` only if it ran out of time. Without `limit` it starts from the beginning and runs to the end.
async fn reap_target(
    store: &dyn Store,
    target: ReapTarget,
    limit: Option<(&ReapCursors, Instant)>,
    mut on_step: impl FnMut(&ReapStep),
) -> Result<bool, StoreError> {
    let saved = limit.and_then(|(cursors, _)| cursors.get(target));
    let mut cursor = saved.and_then(|saved| saved.lock().clone());
    let (mut pacer, mut skipped) = (Pacer::default(), 0);
    loop {
        let step = store.reap(target, cursor, pacer.batch).await?;
        if let (ReapTarget::Records, Some(_)) = (target, limit) {
            gauge!(telemetry::REAP_BEHIND).set(step.behind.unwrap_or_default().as_secs_f64());
        }
        on_step(&step);
        if let Some(saved) = saved {
            saved.lock().clone_from(&step.next);
        }
        cursor = step.next;
        if cursor.is_none() {
            return Ok(true);
        }
        if let Some((_, end)) = limit {
            if matches!(target, ReapTarget::Effects { .. } | ReapTarget::History { .. }) {
                skipped += u64::from(pacer.batch).saturating_sub(step.removed);
            }
            // These rows stay until their record goes. The next round continues at the saved cursor.
            if skipped >= SKIPPED_MAX {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
        }
        sleep(pacer.pause_after(step.took, step.behind)).await;
    }
}

/// Cursors of this process into rows that are ordered by time and may have to stay: effects and history lines while their
/// record exists, records while the application references them, and accepted and unknown records until their time is over.
///
/// Each round continues at its cursor, and starts over after the last row. Otherwise each round would look at all of these
/// rows again, and rows behind more of them than fit into one round would never be reached.
#[derive(Debug, Default)]
pub(crate) struct ReapCursors {
    records: Mutex<Option<Cursor>>,
    effects: Mutex<Option<Cursor>>,
    history: Mutex<Option<Cursor>>,
    overdue: OverdueCursors,
}

impl ReapCursors {
    fn get(&self, target: ReapTarget) -> Option<&Mutex<Option<Cursor>>> {
        match target {
            ReapTarget::Records => Some(&self.records),
            ReapTarget::Effects { .. } => Some(&self.effects),
            ReapTarget::History { .. } => Some(&self.history),
            ReapTarget::Policies | ReapTarget::Room => None,
        }
    }
}

/// Counts the rows that [`reap_store`] would strip or remove, and changes nothing.
///
/// # Errors
///
/// Fails if the store cannot be read.
///
/// # Cancel safety
///
/// Cancel safe: it only reads.
pub async fn reap_preview(store: &dyn Store, keep: Retention) -> Result<ReapPreview, StoreError> {
    let (store, [records, effects, history, ..]) = (store.require_browse()?, reap_targets(keep));
    Ok(ReapPreview {
        records: store.count_reapable(records).await?,
        effects: store.count_reapable(effects).await?.remove,
        history: store.count_reapable(history).await?.remove,
    })
}

/// Returns the targets in their order. Records come first, because effects and history lines may go once their record has.
fn reap_targets(keep: Retention) -> [ReapTarget; 5] {
    let Retention { effects, history } = keep;
    [
        ReapTarget::Records,
        ReapTarget::Effects { keep: effects },
        ReapTarget::History { keep: history },
        ReapTarget::Policies,
        ReapTarget::Room,
    ]
}

impl ReapStats {
    fn add(&mut self, target: ReapTarget, step: &ReapStep) {
        match target {
            ReapTarget::Records => {
                self.stripped += step.stripped;
                self.removed += step.removed;
                self.held += step.held;
                counter!(telemetry::RETENTION_PRUNED).increment(step.removed);
            }
            ReapTarget::Effects { .. } => self.effects += step.removed,
            ReapTarget::History { .. } => self.history += step.removed,
            ReapTarget::Policies => self.policies += step.removed,
            ReapTarget::Room => self.pages += step.removed,
        }
    }
}

/// Adapts the batch size to the duration of the last step, and computes the pause after it.
struct Pacer {
    batch: u32,
}

impl Default for Pacer {
    fn default() -> Self {
        Pacer { batch: BATCH_FIRST }
    }
}

impl Pacer {
    /// Adapts the batch size to a step that took this long. Returns how long to leave the store to others: less, if the
    /// reaper is `behind`.
    fn pause_after(&mut self, took: Duration, behind: Option<Duration>) -> Duration {
        let ratio = STEP_FOR.as_secs_f64() / took.as_secs_f64().max(f64::EPSILON);
        // By at most a factor of two, because one step may have met a checkpoint, or found nothing to do.
        let batch = f64::from(self.batch) * ratio.clamp(0.5, 2.0);
        self.batch = (batch as u32).clamp(BATCH_MIN, BATCH_MAX);
        let parts = match behind.unwrap_or_default() {
            behind if behind >= FAR_BEHIND => 0,
            behind if behind >= BEHIND => 1,
            _ => PAUSE_PARTS,
        };
        took.saturating_mul(parts).min(PAUSE_MAX)
    }
}

/// Runs the reaper while this node is elected, and clears its gauges when another node replaces it. Otherwise this node would go
/// on exporting old numbers; a query that takes the largest value over all nodes skips `NaN`.
pub(super) async fn run(ibid: &Ibid, slot: &ElectionSlot, every: Duration, keep: Retention) {
    let reap = || async {
        run_round(ibid, "reaper", async { Ok(reap_once(ibid, keep).await?.removed) }).await;
        // A round that another node's election has overtaken has set the gauges again.
        if !slot.is_elected() {
            clear_gauges();
        }
    };
    tokio::join!(while_elected(slot, every, reap), async {
        loop {
            slot.wait_until_elected().await;
            slot.wait_until_replaced().await;
            clear_gauges();
        }
    });
}

fn clear_gauges() {
    for state in State::ALL {
        gauge!(telemetry::RECORDS, "state" => state.name()).set(f64::NAN);
        gauge!(telemetry::RECORDS_ESTIMATED, "state" => state.name()).set(f64::NAN);
    }
    for kind in ["records", "effects"] {
        gauge!(telemetry::DEAD_LETTERS, "kind" => kind).set(f64::NAN);
    }
    gauge!(telemetry::OLDEST_UNKNOWN).set(f64::NAN);
    gauge!(telemetry::REAP_BEHIND).set(f64::NAN);
}

async fn count_records(ibid: &Ibid) -> Result<(), StoreError> {
    // A store that cannot be browsed has no such gauges.
    let Some(browse) = ibid.store().browse() else { return Ok(()) };
    let counts = ibid.engine().read_for_chore("count records", browse.count()).await?;
    let set = |gauge: Gauge, count: RowCount| {
        if let Some(count) = count.value() {
            gauge.set(count as f64);
        }
    };
    // Without an exact count, no age does not mean that there is no such record.
    let mut by_state = State::ALL.into_iter().zip(counts.by_state);
    let has_none = by_state.any(|(state, count)| state.is_unknown() && count == RowCount::Exact(0));
    if let Some(age) = counts.oldest_unknown.or(has_none.then_some(Duration::ZERO)) {
        gauge!(telemetry::OLDEST_UNKNOWN).set(age.as_secs_f64());
    }
    for (kind, letters) in [("records", counts.dead_letters), ("effects", counts.dead_effects)] {
        set(gauge!(telemetry::DEAD_LETTERS, "kind" => kind), letters);
    }
    for (state, count) in State::ALL.into_iter().zip(counts.by_state) {
        set(gauge!(telemetry::RECORDS, "state" => state.name()), count);
        if count.value().is_some() {
            let estimated = u8::from(count.is_estimated());
            gauge!(telemetry::RECORDS_ESTIMATED, "state" => state.name()).set(estimated);
        }
    }
    Ok(())
}

/// Target duration of one step: about one flush of a commit, so that a commit that meets a step waits for two flushes
/// instead of one.
const STEP_FOR: Duration = Duration::from_millis(5);

/// Rows of the first step, before anything was measured: some milliseconds on a slow disk.
const BATCH_FIRST: u32 = 64;

/// Fewest rows of a step. With fewer, the flush is most of the cost, and the reaper would fall behind.
const BATCH_MIN: u32 = 32;

/// Most rows of a step, however fast the store is. If the store suddenly becomes slow, the current step must not take long.
const BATCH_MAX: u32 = 1000;

/// Pause after a step, as a multiple of its duration: the reaper uses at most a fifth of the store's time. With 2, a third
/// of the time, the p99 of requests on PostgreSQL was 1.7 times the p99 without a reaper (two cores, both busy).
const PAUSE_PARTS: u32 = 4;

/// Backlog at which the reaper uses half of the store's time: a few rounds were not enough.
const BEHIND: Duration = Duration::from_secs(2 * 60);

/// Backlog at which the reaper pauses no longer: rows arrive faster than they go, and a table that grows without end is worse
/// than slower requests.
const FAR_BEHIND: Duration = Duration::from_secs(10 * 60);

/// Longest pause after a step. A store that is slower than this has other problems, and longer pauses would not help.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Longest duration of a round, so that accepted records are checked and the gauges are set once a minute. The next round
/// continues at the cursors.
const ROUND_FOR_MAX: Duration = Duration::from_secs(60);

/// Share of the records in a round. Each request makes one, so they get most of it, and what the others leave.
const RECORDS_FOR_MAX: Duration = Duration::from_secs(40);

/// Share of the effects, of which a request has a few or none. Without a share they would get one step a minute while the records
/// are behind.
const EFFECTS_FOR_MAX: Duration = Duration::from_secs(8);

/// Share of the history lines, as many as of the effects. Most rows of either stay, so most of a step is reading.
const HISTORY_FOR_MAX: Duration = Duration::from_secs(8);

/// Share of the policies, and of the empty pages of the file: a few rows, and one step's work.
const REST_FOR_MAX: Duration = Duration::from_secs(2);

const _: () = assert!(
    RECORDS_FOR_MAX.as_secs()
        + EFFECTS_FOR_MAX.as_secs()
        + HISTORY_FOR_MAX.as_secs()
        + 2 * REST_FOR_MAX.as_secs()
        == ROUND_FOR_MAX.as_secs()
);

/// Largest lead of the store's clock over this node's with which rows are removed. More than two clocks with a time service, or a
/// slow reply, ever differ by; less than any retention that matters.
#[doc(hidden)]
pub const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(600);

/// Effects or history lines that one round reads and skips: about a tenth of a second of work. At one round a minute, a
/// pass over ten million rows takes most of a day.
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
            let expired = Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) };
            put(&store, &insert(&name, expired)).await;
        }
        let app = rusqlite::Connection::open(&path).expect("it opens for the application too");
        let references = format!(
            "create table payment (record blob references ibid_record (id));
             update ibid_record set purge_at = row, expires_at = null;
             insert into payment select id from ibid_record order by row limit {}",
            3 * BATCH_FIRST - 10
        );
        app.execute_batch(&references).expect("payments");
        let cursors = ReapCursors::default();
        // No time at all: one step for each target.
        let limits = RoundLimits { length: Duration::ZERO, cursors: &cursors };
        let (mut removed, mut held) = (0, 0);
        for _ in 0..5 {
            let stats = round(&store, Retention::default(), Some(&limits), |_| {}).await.expect("a round");
            (removed, held) = (removed + stats.removed, held + stats.held);
            if !stats.unfinished {
                break;
            }
        }
        assert_eq!((removed, held), (10, u64::from(3 * BATCH_FIRST - 10)), "to the end, and each once");
        let stats = round(&store, Retention::default(), Some(&limits), |_| {}).await.expect("a round");
        assert!(stats.held > 0 && stats.unfinished, "from the start again: {stats:?}");
    }

    #[test]
    fn a_slow_step_is_followed_by_a_smaller_one_and_a_longer_pause() {
        let mut pacer = Pacer { batch: 400 };
        let mut pause_after = |millis| {
            let pause = pacer.pause_after(Duration::from_millis(millis), None);
            (pacer.batch, pause)
        };
        assert_eq!(pause_after(50), (200, Duration::from_millis(200)), "by half at most");
        assert_eq!(pause_after(5), (200, Duration::from_millis(20)), "as it should be");
        assert_eq!(pause_after(4).0, 250, "in proportion");
        let slow = (0..20).map(|_| pause_after(9000)).last();
        assert_eq!(slow, Some((BATCH_MIN, PAUSE_MAX)));
        let quick = (0..20).map(|_| pause_after(0)).last();
        assert_eq!(quick, Some((BATCH_MAX, Duration::ZERO)));
    }

    #[test]
    fn a_reaper_that_is_behind_pauses_less() {
        let step = Duration::from_millis(5);
        let pause = |behind| Pacer::default().pause_after(step, Some(behind));
        assert_eq!(pause(Duration::from_secs(1)), step * PAUSE_PARTS);
        assert_eq!(pause(BEHIND), step);
        assert_eq!(pause(FAR_BEHIND), Duration::ZERO);
    }
}
