//! The thread that owns the only connection that writes.
//!
//! Whatever waits is committed together, and answered only after COMMIT returned. A transaction that fails is rolled
//! back; a connection that may be spoilt is opened anew for the next job, so that the store recovers when the disk
//! does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ibid_core::change::{Change, Commit};
use ibid_core::reap::{ReapStep, ReapTarget};
use ibid_core::record::Version;
use ibid_core::scope::RecordId;
use ibid_core::store::{RenewOutcome, SetOutcome, StoreError};
use ibid_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot::Sender;

use super::failure::{self, Reach, store_error};
use super::queue::{Found, Queue, Serving, Weigh};
use super::reader::setting;
use super::row::{Policies, bits};
use super::{KIND, Place, batch, open};

/// Something to write, and where to send what came of it.
pub(super) enum Job {
    Commit {
        changes: Vec<Arc<Change>>,
        reply: Sender<Fates>,
    },
    Renew {
        leases: Vec<(RecordId, Version)>,
        reply: Sender<Result<Vec<RenewOutcome>, StoreError>>,
    },
    Reap {
        course: ReapTarget,
        from: i64,
        limit: u32,
        reply: Sender<Result<ReapStep, StoreError>>,
    },
    Set {
        name: String,
        expected: Option<Bytes>,
        value: Bytes,
        reply: Sender<Result<SetOutcome, StoreError>>,
    },
    /// A caller's closure; it sends its own reply.
    Run(Box<dyn FnOnce(&mut Writer) + Send>),
}

/// What came of each Change of a job.
type Fates = Vec<Result<Commit, StoreError>>;

impl Weigh for Job {
    fn weight(&self) -> usize {
        ROW_BYTES
            + match self {
                Job::Commit { changes, .. } => changes.iter().map(|change| change_bytes(change)).sum(),
                Job::Renew { leases, .. } => leases.len() * size_of::<(RecordId, Version)>(),
                Job::Reap { .. } => 0,
                Job::Set { name, value, .. } => name.len() + value.len(),
                // What it holds on the heap is not ours to know.
                Job::Run(work) => size_of_val(&**work),
            }
    }
}

/// Starts the thread.
pub(super) fn start(
    place: Place,
    connection: Connection,
    jobs: Arc<Queue<Job>>,
) -> std::io::Result<JoinHandle<()>> {
    let serving = Serving(jobs);
    thread::Builder::new().name("ibid-sqlite-write".to_owned()).spawn(move || {
        let tidy_at = Instant::now();
        let writer = Writer {
            place,
            connection: Some(connection),
            policies: Policies::default(),
            dirty: true,
            tidy_at,
        };
        writer.serve(&serving);
    })
}

pub(super) struct Writer {
    place: Place,
    /// None after a failure that may have spoilt it.
    pub(super) connection: Option<Connection>,
    policies: Policies,
    /// Whether something was written since the file was tidied.
    dirty: bool,
    /// When the size of the log is looked at next.
    tidy_at: Instant,
}

/// A transaction that came to nothing: which Change was at fault, if it was one, and why.
pub(super) struct Stumble {
    place: Option<usize>,
    pub(super) error: rusqlite::Error,
}

impl From<rusqlite::Error> for Stumble {
    fn from(error: rusqlite::Error) -> Stumble {
        Stumble { place: None, error }
    }
}

impl Writer {
    fn serve(mut self, Serving(jobs): &Serving<Job>) {
        loop {
            // With nothing to tidy there is nothing to wake up for.
            match jobs.take(self.dirty.then_some(IDLE_AFTER)) {
                Found::Job(job) => self.work(job, jobs),
                Found::Nothing => self.tidy(),
                Found::Closed => return,
            }
        }
    }

    fn work(&mut self, job: Job, jobs: &Queue<Job>) {
        self.dirty = true;
        match job {
            Job::Commit { changes, reply } => {
                self.commit(changes, reply, jobs);
                self.shrink_log();
            }
            Job::Renew { leases, reply } => {
                let renewed = self.transact(|connection, _, now| Ok(renew(connection, &leases, now)?));
                // Whoever left no longer needs to know; here and below.
                let _ = reply.send(renewed.map_err(|stumble| store_error("renew", stumble.error)));
            }
            Job::Reap { course, from, limit, reply } => {
                let _ = reply.send(self.reap(course, from, limit));
                self.shrink_log();
            }
            Job::Set { name, expected, value, reply } => {
                let set = self.transact(|connection, _, _| Ok(set(connection, &name, expected, &value)?));
                let _ = reply.send(set.map_err(|stumble| store_error("write a setting", stumble.error)));
            }
            Job::Run(work) => {
                work(self);
                self.shrink_log();
            }
        }
    }

    /// Commits a job together with those that wait behind it, as far as they fit.
    fn commit(&mut self, mut changes: Vec<Arc<Change>>, reply: Sender<Fates>, jobs: &Queue<Job>) {
        let mut replies = vec![(changes.len(), reply)];
        let mut bytes: usize = changes.iter().map(|change| change_bytes(change)).sum();
        let fits = |job: &Job, count: usize, bytes: usize| match job {
            Job::Commit { changes, .. } => {
                count + changes.len() <= CHANGES_MAX && bytes + job.weight() <= BATCH_BYTES_MAX
            }
            _ => false,
        };
        while let Some(Job::Commit { changes: more, reply }) =
            jobs.take_if(|job| fits(job, changes.len(), bytes))
        {
            bytes += more.iter().map(|change| change_bytes(change)).sum::<usize>();
            replies.push((more.len(), reply));
            changes.extend(more);
        }
        let mut fates = self.commit_all(&changes).into_iter();
        for (count, reply) in replies {
            let _ = reply.send(fates.by_ref().take(count).collect());
        }
    }

    /// One transaction for all. A Change that can't be stored is left out and the rest is run again, so that its
    /// failure is its own.
    fn commit_all(&mut self, changes: &[Arc<Change>]) -> Fates {
        let mut failed: BTreeMap<usize, StoreError> = BTreeMap::new();
        // Each turn but the last leaves one more out, so this ends.
        let outcome = loop {
            let out = |place: usize| failed.contains_key(&place);
            let attempt = self.transact(|connection, policies, now| {
                batch::run(connection, policies, now, changes, out).map_err(|(place, error)| {
                    let at_fault = failure::reach(&error) == Reach::One;
                    Stumble { place: at_fault.then_some(place), error }
                })
            });
            match attempt {
                Ok(fates) => break Ok(fates),
                Err(Stumble { place: Some(place), error }) => {
                    failed.insert(place, store_error("commit", error));
                }
                Err(Stumble { place: None, error }) => break Err(error),
            }
        };
        let mut failed = |place| failed.remove(&place);
        match outcome {
            Ok(fates) => fates
                .into_iter()
                .enumerate()
                // Each place has a fate or was left out with its error.
                .map(|(place, fate)| fate.ok_or_else(|| failed(place).expect("left out with its error")))
                .collect(),
            Err(error) => {
                let transient = failure::reach(&error) == Reach::Moment;
                let error = Arc::new(error);
                let shared = || match transient {
                    true => StoreError::transient(KIND, "commit", error.clone()),
                    false => StoreError::lasting(KIND, "commit", error.clone()),
                };
                (0..changes.len()).map(|place| Err(failed(place).unwrap_or_else(shared))).collect()
            }
        }
    }

    /// Runs `work` in a transaction of its own. The time is read once the write lock is ours, so that instants are in
    /// the order of the writes.
    pub(super) fn transact<T>(
        &mut self,
        work: impl FnOnce(&Connection, &mut Policies, Timestamp) -> Result<T, Stumble>,
    ) -> Result<T, Stumble> {
        self.begin()?;
        // `begin` leaves a connection.
        let connection = self.connection.as_ref().expect("a transaction is open");
        let outcome = work(connection, &mut self.policies, self.place.now())
            .and_then(|done| run(connection, "commit").map(|()| done).map_err(Stumble::from));
        if let Err(stumble) = &outcome {
            self.roll_back(failure::spoils_connection(&stumble.error));
        }
        outcome
    }

    /// Opens the file anew if need be, and takes the write lock. After an error no transaction is open.
    pub(super) fn begin(&mut self) -> rusqlite::Result<()> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(open::writer(&self.place)?),
        };
        let begun = begin(connection, self.place.options.busy_timeout);
        if let Err(error) = &begun {
            self.roll_back(failure::spoils_connection(error));
        }
        begun
    }

    /// Leaves nothing of a transaction behind.
    pub(super) fn roll_back(&mut self, spoilt: bool) {
        self.policies.clear();
        let Some(connection) = &self.connection else { return };
        // SQLite rolls back by itself after some errors; then there is nothing left to do.
        let ended = connection.is_autocommit() || run(connection, "rollback").is_ok();
        if spoilt || !ended {
            self.connection = None;
        }
    }

    /// Nobody waits: move what is in the log into the file, so that no commit has to.
    fn tidy(&mut self) {
        self.dirty = false;
        if let Some(connection) = &self.connection {
            checkpoint(connection, "passive");
        }
        self.shrink_log();
    }

    /// A reader that never ends keeps the log from starting over, and it grows. Now and then look at its size, and if
    /// it is past all measure wait for the readers, for as long as for any lock.
    fn shrink_log(&mut self) {
        if Instant::now() < self.tidy_at {
            return;
        }
        self.tidy_at = Instant::now() + LOG_LOOK_EVERY;
        let mut log = self.place.path.clone().into_os_string();
        log.push("-wal");
        let size = std::fs::metadata(log).map_or(0, |metadata| metadata.len());
        if let (true, Some(connection)) = (size > 2 * u64::from(open::LOG_BYTES_KEPT), &self.connection) {
            // [`begin`] does its own waiting and leaves SQLite's turned off.
            let _ = connection.busy_timeout(self.place.options.busy_timeout);
            checkpoint(connection, "truncate");
        }
    }
}

fn renew(
    connection: &Connection,
    leases: &[(RecordId, Version)],
    now: Timestamp,
) -> rusqlite::Result<Vec<RenewOutcome>> {
    let mut renew = connection.prepare_cached(include_str!("sql/renew.sql"))?;
    let mut fates = Vec::with_capacity(leases.len());
    for (id, version) in leases {
        let lease = params![id.as_bytes(), version.count, bits(version.nonce), now.as_micros()];
        let until = renew.query_row(lease, |row| row.get(0)).optional()?;
        fates.push(
            until.map_or(RenewOutcome::Lost, |until| RenewOutcome::Until(Timestamp::from_micros(until))),
        );
    }
    Ok(fates)
}

fn set(
    connection: &Connection,
    name: &str,
    expected: Option<Bytes>,
    value: &Bytes,
) -> rusqlite::Result<SetOutcome> {
    let new = &value[..];
    let written = match &expected {
        None => {
            let mut add = connection.prepare_cached(include_str!("sql/setting_add.sql"))?;
            add.execute(params![name, new])?
        }
        Some(old) => {
            let mut replace = connection.prepare_cached(include_str!("sql/setting_set.sql"))?;
            replace.execute(params![name, &old[..], new])?
        }
    };
    match written {
        0 => Ok(SetOutcome::of(setting(connection, name)?, value)),
        _ => Ok(SetOutcome::Won),
    }
}

/// Takes the write lock, waiting for it with short naps.
///
/// SQLite's own waiting naps for longer and longer, up to 100 ms. A busy neighbour on the same file holds the lock most
/// of the time and is free for moments only, so that way it would be met free too seldom: begins would be refused and
/// leases lapse although the lock changes hands every few milliseconds.
fn begin(connection: &Connection, patience: Duration) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::ZERO)?;
    let until = Instant::now() + patience;
    loop {
        match run(connection, "begin immediate") {
            Err(error) if open::is_busy(&error) && Instant::now() < until => thread::sleep(LOCK_RETRY_AFTER),
            done => return done,
        }
    }
}

pub(super) fn run(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

/// What was committed is safe in the log either way, so a checkpoint that fails is one that comes later.
fn checkpoint(connection: &Connection, mode: &str) {
    if let Err(error) = connection.query_row(&format!("pragma wal_checkpoint({mode})"), [], |_| Ok(())) {
        tracing::debug!(%error, mode, "checkpoint put off");
    }
}

fn change_bytes(change: &Change) -> usize {
    ROW_BYTES + change.body_bytes()
}

/// About what a row weighs in memory and on disk, to bound queues and batches by.
const ROW_BYTES: usize = 1 << 10;

/// Most Changes in one transaction. At about 10 µs each the last waits 5 ms for the first, as long as the flush
/// that they share.
const CHANGES_MAX: usize = 512;

/// Most bytes in one transaction, so that a few large answers do not hold up many small ones.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// From one try for the write lock to the next: a fraction of the shortest commit.
const LOCK_RETRY_AFTER: Duration = Duration::from_micros(500);

/// How long nobody wrote before the file is tidied: longer than the gaps of steady traffic.
const IDLE_AFTER: Duration = Duration::from_millis(500);

/// How often the size of the log is looked at.
const LOG_LOOK_EVERY: Duration = Duration::from_secs(10);
