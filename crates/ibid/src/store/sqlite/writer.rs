//! The thread that owns the only connection that writes.
//!
//! It commits whatever waits together, and replies only after COMMIT returned. A transaction that fails is rolled back. A
//! connection that may be damaged is opened again for the next job, so that the store recovers when the disk does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ibid_core::change::Commit;
use ibid_core::record::Version;
use ibid_core::row::bits;
use ibid_core::scope::RecordId;
use ibid_core::store::{RenewOutcome, StoreError};
use ibid_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::batch::{ChangeGroup, run};
use super::chore::{ChoreContext, ChoreKind};
use super::error::{self, SqliteErrorScope};
use super::policies::Policies;
use super::queue::{CommitJob, Group, JobQueueGuard, NextWork};
use super::{NAME, StoreFile, open};

/// Numbers of commits since the store was opened, for benchmarks.
#[derive(Debug, Default)]
pub(super) struct CommitCounters {
    pub(super) commits: AtomicU64,
    pub(super) changes: AtomicU64,
    pub(super) renewals: AtomicU64,
}

pub(super) struct Writer {
    file: StoreFile,
    /// `None` after a failure that may have damaged it.
    pub(super) connection: Option<Connection>,
    policies: Policies,
    counters: Arc<CommitCounters>,
    /// `true` if commits are flushed now; see [`Writer::set_flush`].
    is_flushing: bool,
    /// `true` if something was written since the last checkpoint of an idle moment.
    is_dirty: bool,
    /// Instant of the next check of the log's size.
    log_look_at: Instant,
    /// Changes of the last group, and how long its COMMIT took.
    last: (usize, Duration),
    /// `true` if the last group failed: what waited behind it has not waited for work, but for a file that takes none.
    has_failed: bool,
}

/// Starts the writer's thread.
pub(super) fn start(
    file: StoreFile,
    connection: Connection,
    guard: JobQueueGuard,
    counters: Arc<CommitCounters>,
) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("ibid-sqlite-write".to_owned()).spawn(move || {
        let writer = Writer {
            file,
            connection: Some(connection),
            policies: Policies::default(),
            counters,
            is_flushing: true,
            is_dirty: true,
            log_look_at: Instant::now(),
            last: (0, Duration::ZERO),
            has_failed: false,
        };
        writer.serve(&guard);
    })
}

impl Writer {
    fn serve(mut self, JobQueueGuard(queue): &JobQueueGuard) {
        loop {
            // With nothing to tidy there is nothing to wake up for.
            let patience = self.is_dirty.then_some(IDLE_AFTER);
            let (expected, gather) = self.gathering();
            match queue.take(patience, expected, gather) {
                NextWork::Group(group) => self.commit(group),
                NextWork::Closure(closure) => {
                    self.is_dirty = true;
                    self.last = (0, Duration::ZERO);
                    closure(&mut self);
                }
                NextWork::Idle => self.tidy(),
                NextWork::Closed => return,
            }
            self.shrink_log();
        }
    }

    /// Returns how many changes to wait for, and how long.
    ///
    /// Callers that were just answered send their next change a moment later. Without a pause they would split into two
    /// cohorts that commit in turn, each half as large. A pause saves one COMMIT at most: the statements of a change cost the
    /// same in a group of any size. So the pause is a part of that, and not of the whole transaction, which grows with the
    /// group. A lone caller never waits: its last group was small.
    fn gathering(&self) -> (usize, Duration) {
        let (changes, took) = self.last;
        match changes < GATHER_MIN {
            true => (0, Duration::ZERO),
            false => (changes, (took / GATHER_PART).min(GATHER_MAX)),
        }
    }

    /// Commits a group, and replies to each of its jobs.
    fn commit(&mut self, mut group: Group) {
        let now = Instant::now();
        let is_late = |job: &mut CommitJob| job.limit.as_ref().is_some_and(|limit| limit.is_over(now));
        refuse(group.commits.extract_if(.., is_late), self.has_failed);
        if group.is_empty() {
            return;
        }
        self.is_dirty = true;
        let changes = group.commits.len();
        let leases: u64 = group.renewals.iter().map(|job| job.leases.len() as u64).sum();
        match self.commit_group(&mut group) {
            Ok(outcomes) => {
                self.counters.commits.fetch_add(1, Ordering::Relaxed);
                self.counters.changes.fetch_add(changes as u64, Ordering::Relaxed);
                self.counters.renewals.fetch_add(leases, Ordering::Relaxed);
                self.last = (changes, outcomes.flushed_in);
                self.has_failed = false;
                outcomes.reply(group);
            }
            Err(failure) => {
                self.last = (0, Duration::ZERO);
                self.has_failed = true;
                failure.reply(group);
            }
        }
    }

    /// Runs a group in one transaction. If a chore fails with more than itself, the chores of its kind are left out, and the
    /// rest is run again.
    fn commit_group(&mut self, group: &mut Group) -> Result<GroupOutcomes, GroupFailure> {
        self.set_flush(group.must_flush()).and_then(|()| self.begin()).map_err(GroupFailure::unwritten)?;
        // Not before, because another process may have held the write lock for long.
        let now = Instant::now();
        let is_late = |job: &mut CommitJob| job.limit.as_mut().is_some_and(|limit| !limit.claim(now));
        refuse(group.commits.extract_if(.., is_late), false);
        let mut outcomes = match self.apply(group) {
            Ok(outcomes) => outcomes,
            Err((error, kind)) => {
                self.roll_back(error::spoils_connection(&error));
                let failure = GroupFailure::unwritten(error);
                for chore in group.chores.extract_if(.., |chore| Some(chore.kind()) == kind) {
                    chore.fail(failure.store_error(CHORE));
                }
                let may_repeat = kind.is_some() && !group.is_empty();
                return if may_repeat { self.commit_group(group) } else { Err(failure) };
            }
        };
        // `begin` leaves a connection.
        let connection = self.connection.as_ref().expect("a transaction is open");
        let started = Instant::now();
        let committed = run(connection, "commit");
        outcomes.flushed_in = started.elapsed();
        committed.map(|()| outcomes).map_err(|error| {
            let is_unwritten = error::refused_commit(&error);
            self.roll_back(error::spoils_connection(&error));
            GroupFailure { error: Arc::new(error), is_unwritten }
        })
    }

    /// Runs every job of a group. An error names the kind of the chore that is to blame, if one is.
    fn apply(&mut self, group: &mut Group) -> Result<GroupOutcomes, (rusqlite::Error, Option<ChoreKind>)> {
        let connection = self.connection.as_ref().expect("a transaction is open");
        // Read once the write lock is ours, so that instants are in the order of the writes.
        let now = self.file.now();
        let others = |error| (error, None);
        let mut renewals = Vec::with_capacity(group.renewals.len());
        for job in &group.renewals {
            renewals.push(renew(connection, &job.leases, now).map_err(others)?);
        }
        let mut commits = Vec::with_capacity(group.commits.len());
        if !group.commits.is_empty() {
            let mut batch = ChangeGroup::new(connection, &mut self.policies, now).map_err(others)?;
            for job in &group.commits {
                commits.push(batch.apply(&job.change).map_err(others)?);
            }
        }
        let sharing = group.commits.len() + group.chores.len().saturating_sub(1);
        let context = ChoreContext { now, changes: u32::try_from(sharing).unwrap_or(u32::MAX) };
        let mut next = 0;
        while let Some(chore) = group.chores.get_mut(next) {
            match chore.run(connection, context) {
                Ok(()) => next += 1,
                // SQLite has undone the statement that failed, and a small chore is no more than that.
                Err(error)
                    if chore.kind() != ChoreKind::Step
                        && error::scope_of(&error) == SqliteErrorScope::One
                        && !connection.is_autocommit() =>
                {
                    group.chores.remove(next).fail(error::store_error(CHORE, error).unwritten());
                }
                Err(error) => return Err((error, Some(chore.kind()))),
            }
        }
        Ok(GroupOutcomes { renewals, commits, flushed_in: Duration::ZERO })
    }

    /// Sets whether the next commit is flushed. A transaction that holds only a step of the reaper is not: in a write-ahead
    /// log the flush of a later commit covers it, and losing it loses nothing.
    pub(super) fn set_flush(&mut self, is_flushing: bool) -> rusqlite::Result<()> {
        let Some(connection) = &self.connection else {
            // A new connection flushes.
            self.is_flushing = true;
            return Ok(());
        };
        if self.is_flushing != is_flushing {
            run(
                connection,
                if is_flushing { "pragma synchronous = full" } else { "pragma synchronous = normal" },
            )?;
            self.is_flushing = is_flushing;
        }
        Ok(())
    }

    /// Opens the file again if need be, and takes the write lock. After an error no transaction is open.
    pub(super) fn begin(&mut self) -> rusqlite::Result<()> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(open::writer(&self.file)?),
        };
        let result = begin(connection, self.file.options.busy_timeout);
        if let Err(error) = &result {
            self.roll_back(error::spoils_connection(error));
        }
        result
    }

    /// Leaves nothing of a transaction behind.
    pub(super) fn roll_back(&mut self, is_damaged: bool) {
        self.policies.clear();
        let Some(connection) = &self.connection else { return };
        // SQLite rolls back by itself after some errors; then there is nothing left to do.
        let is_over = connection.is_autocommit() || run(connection, "rollback").is_ok();
        if is_damaged || !is_over {
            self.connection = None;
            self.is_flushing = true;
        }
    }

    /// Moves the log into the file in an idle moment, so that no commit has to.
    fn tidy(&mut self) {
        self.is_dirty = false;
        if let Some(connection) = &self.connection {
            checkpoint(connection, "passive");
        }
    }

    /// Cuts a log that has grown far beyond its usual size.
    ///
    /// A long read keeps the log from starting over, and it grows. The writer tries again every few seconds and never
    /// waits for the reader: commits would wait with it.
    fn shrink_log(&mut self) {
        if Instant::now() < self.log_look_at {
            return;
        }
        self.log_look_at = Instant::now() + LOG_LOOK_EVERY;
        let mut log = self.file.path.clone().into_os_string();
        log.push("-wal");
        let size = std::fs::metadata(log).map_or(0, |metadata| metadata.len());
        if let (true, Some(connection)) = (size > 2 * u64::from(open::LOG_BYTES_KEPT), &self.connection) {
            // [`begin`] has turned SQLite's own waiting off.
            checkpoint(connection, "truncate");
        }
    }
}

/// The outcomes of a group, in the order of its jobs.
struct GroupOutcomes {
    renewals: Vec<Vec<RenewOutcome>>,
    commits: Vec<Result<Commit, StoreError>>,
    /// Time that COMMIT took.
    flushed_in: Duration,
}

impl GroupOutcomes {
    fn reply(self, group: Group) {
        // A caller that left no longer needs the outcome; here and below.
        for (job, outcome) in group.renewals.into_iter().zip(self.renewals) {
            drop(job.reply.send(Ok(outcome)));
        }
        for (job, outcome) in group.commits.into_iter().zip(self.commits) {
            drop(job.reply.send(outcome));
        }
        group.chores.into_iter().for_each(|chore| chore.done());
    }
}

/// A transaction that failed as a whole.
struct GroupFailure {
    error: Arc<rusqlite::Error>,
    is_unwritten: bool,
}

impl GroupFailure {
    fn unwritten(error: rusqlite::Error) -> GroupFailure {
        GroupFailure { error: Arc::new(error), is_unwritten: true }
    }

    fn reply(self, group: Group) {
        for job in group.renewals {
            drop(job.reply.send(Err(self.store_error("renew"))));
        }
        for job in group.commits {
            drop(job.reply.send(Err(self.store_error("commit"))));
        }
        for chore in group.chores {
            chore.fail(self.store_error(CHORE));
        }
    }

    fn store_error(&self, op: &'static str) -> StoreError {
        let error = match error::scope_of(&self.error) {
            SqliteErrorScope::Moment => StoreError::transient(NAME, op, self.error.clone()),
            SqliteErrorScope::One | SqliteErrorScope::Lasting => {
                StoreError::lasting(NAME, op, self.error.clone())
            }
        };
        if self.is_unwritten { error.unwritten() } else { error }
    }
}

/// Refuses changes that were not sent in time. If they waited behind a group that failed, the file takes no writes: that is no
/// overload, and the caller must learn of it.
fn refuse(late: impl Iterator<Item = CommitJob>, has_failed: bool) {
    for job in late {
        let error = match has_failed {
            true => {
                StoreError::transient(NAME, "commit", "not sent in time behind a failed write").unwritten()
            }
            false => StoreError::overloaded(NAME, "commit"),
        };
        drop(job.reply.send(Err(error)));
    }
}

fn renew(
    connection: &Connection,
    leases: &[(RecordId, Version)],
    now: Timestamp,
) -> rusqlite::Result<Vec<RenewOutcome>> {
    let mut renew = connection.prepare_cached(include_str!("sql/renew.sql"))?;
    let mut outcomes = Vec::with_capacity(leases.len());
    for (id, version) in leases {
        let lease = params![id.as_bytes(), version.count, bits(version.nonce), now.as_micros()];
        let until = renew.query_row(lease, |row| row.get::<_, Option<i64>>(0)).optional()?.flatten();
        outcomes.push(
            until.map_or(RenewOutcome::Lost, |until| RenewOutcome::Until(Timestamp::from_micros(until))),
        );
    }
    Ok(outcomes)
}

/// Takes the write lock, and retries after short pauses.
///
/// SQLite's own pauses grow up to 100 ms. A busy process on the same file holds the lock most of the time and frees it for
/// moments only, so that begins would be refused and leases lapse although the lock changes hands every few
/// milliseconds.
pub(super) fn begin(connection: &Connection, patience: Duration) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::ZERO)?;
    let until = Instant::now() + patience;
    loop {
        match run(connection, "begin immediate") {
            Err(error) if open::is_busy(&error) && Instant::now() < until => thread::sleep(LOCK_RETRY_AFTER),
            done => return done,
        }
    }
}

/// Moves the log into the file as far as possible. Whatever was committed is safe in the log, so a failure is not urgent.
fn checkpoint(connection: &Connection, mode: &str) {
    if let Err(error) = connection.query_row(&format!("pragma wal_checkpoint({mode})"), [], |_| Ok(())) {
        tracing::debug!(%error, mode, "checkpoint put off");
    }
}

const CHORE: &str = "run a chore";

/// From one try for the write lock to the next: a fraction of the shortest commit.
const LOCK_RETRY_AFTER: Duration = Duration::from_micros(500);

/// Idle time after which the writer moves the log into the file: longer than the gaps of steady traffic.
const IDLE_AFTER: Duration = Duration::from_millis(500);

/// Interval between checks of the log's size.
const LOG_LOOK_EVERY: Duration = Duration::from_secs(10);

/// A group of fewer changes is not worth waiting for its callers.
const GATHER_MIN: usize = 4;

/// The writer waits for at most this part of the time that its last COMMIT took.
const GATHER_PART: u32 = 8;

/// The writer never waits longer than this for callers, however slow the disk is.
const GATHER_MAX: Duration = Duration::from_micros(300);
