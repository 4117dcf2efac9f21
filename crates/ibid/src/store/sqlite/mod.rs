//! Records in one SQLite file: the embedded store.
//!
//! One thread owns the only connection that writes, and commits whatever waits for it together, so that many requests
//! share one flush. A few threads read. The async side only queues a job and waits for its reply; it never touches a
//! connection. Several processes may share the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ibid_core::change::{Change, Commit, LoadedBody, StoredRecord};
use ibid_core::evidence::EvidenceStore;
use ibid_core::reap::{ReapStep, ReapTarget};
use ibid_core::record::{Nonce, State, Version};
use ibid_core::scope::RecordId;
use ibid_core::store::{
    BodyStore, BoxFuture, BrowseStore, CopyStore, Cursor, Durability, Page, RenewOutcome, SetOutcome,
    SqlStore, Store, StoreClock, StoreError, StoreFacts,
};
use ibid_core::time::Timestamp;
use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use self::chore::{ChoreContext, ChoreJob, ChoreKind};
use self::queue::{CommitJob, Job, JobQueue, JobQueueGuard, QueueError, RenewJob};
use self::reader::{Questions, QuestionsGuard, Reader};
use self::sql_store::PolicyNumbers;
use self::writer::CommitCounters;
use super::checkup::Checkup;
use super::clock::Clock;
use super::read_only_query::{ReadOnlyQueryError, RowCallback};
use super::schema_steps::Migration;
use super::send_deadline::{SendDeadline, reply_or_withdraw};

mod batch;
mod browse;
mod checkup;
mod chore;
mod closure;
mod copy;
mod error;
mod evidence;
mod open;
mod order;
mod policies;
mod queue;
mod read_only_query;
mod reader;
mod reap;
mod row;
mod schema;
mod sql_store;
mod writer;

pub use self::open::SqliteOpenError;
/// The driver whose connections [`SqliteStore::run`] hands out.
pub use rusqlite;

/// A store in one SQLite file.
///
/// A commit returns after its write is on disk (`synchronous=FULL`). The file is in WAL mode; dropping the store
/// finishes what is queued and leaves one file behind.
///
/// # In an application's own database
///
/// The store's tables are called `ibid_…`, so the file may also hold an application's tables. The
/// store changes nothing of the application's but the journal mode, which becomes WAL and stays so; while other
/// connections hold a file in another mode, opening fails. The header (`application_id`, `user_version`) is the
/// application's.
///
/// The application writes either by [`SqliteStore::run`] or on its other connections. On those it begins with
/// `BEGIN IMMEDIATE`, because a transaction that reads first and then writes fails whenever another connection wrote in
/// between; it sets a busy timeout and keeps transactions short, because the store waits for them.
///
/// A row may refer to a record: `record blob references ibid_record(id) on delete set null`, with an index on that
/// column. When the record goes, the reference is cleared and the row stays. A reference that forbids the removal keeps
/// the record for as long as the row is there; a deferred one must not, because it makes every purge fail.
///
/// ```
/// use ibid::store::sqlite::{SqliteOptions, SqliteStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let directory = tempfile::tempdir()?;
/// let store = SqliteStore::open(&directory.path().join("ibid.db"), SqliteOptions::default())?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SqliteStore {
    jobs: Arc<JobQueue>,
    /// Questions of replays and upkeep.
    questions: Arc<Questions>,
    /// Questions of operators, on a separate thread.
    browsing: Arc<Questions>,
    readers: Vec<JoinHandle<()>>,
    writer: Option<JoinHandle<()>>,
    clock: Clock,
    counters: Arc<CommitCounters>,
    policy_numbers: PolicyNumbers,
}

/// Numbers of commits since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommitCounts {
    /// Transactions that were committed for changes, renewals and chores.
    pub commits: u64,
    /// Changes in these transactions.
    pub changes: u64,
    /// Leases renewed in these transactions.
    pub renewals: u64,
}

/// Options of a [`SqliteStore`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// The clock that all instants come from.
    pub clock: Clock,
    /// Create a file that does not exist, and the store's tables in a file that has none. If not, opening fails there.
    pub create: bool,
    /// Upgrade tables of an earlier step. If not, opening fails, and an operator runs `ibid migrate`: an upgrade may rebuild an
    /// index while every writer of the file waits, and other processes may still run the version before.
    pub upgrade: bool,
    /// Longest wait of a write while another process writes; then it fails as transient.
    pub busy_timeout: Duration,
    /// Largest size of the file in bytes; past it writes fail as transient until a purge makes room.
    pub file_bytes_max: Option<u64>,
}

impl SqliteOptions {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut SqliteOptions)) -> SqliteOptions {
        change(&mut self);
        self
    }
}

impl Default for SqliteOptions {
    fn default() -> Self {
        SqliteOptions {
            clock: Clock::system(),
            create: true,
            upgrade: false,
            // Another process holds the lock for one batch, some milliseconds. A second is a stalled disk, and then
            // the caller's own deadlines should decide.
            busy_timeout: Duration::from_secs(1),
            file_bytes_max: None,
        }
    }
}

impl SqliteStore {
    /// Opens the file, creates or upgrades its tables as the options allow, and starts the store's threads. It blocks while
    /// it does so.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be a store; [`SqliteOpenError`] says why. The file is then left as it is.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<SqliteStore, SqliteOpenError> {
        let file = StoreFile::new(path, options)?;
        let (connection, _) = open::prepare(&file)?;
        let mut store = SqliteStore {
            jobs: JobQueue::new(),
            questions: Questions::new(),
            browsing: Questions::new(),
            readers: Vec::new(),
            writer: None,
            clock: file.options.clock.clone(),
            counters: Arc::default(),
            policy_numbers: PolicyNumbers::default(),
        };
        // On an error the store is dropped, and with it the threads that did start.
        let failed = |error| open::failure(&file.path, error);
        let guard = JobQueueGuard(store.jobs.clone());
        let writer = writer::start(file.clone(), connection, guard, store.counters.clone());
        store.writer = Some(writer.map_err(failed)?);
        for (questions, threads) in [(&store.questions, READERS), (&store.browsing, 1)] {
            let guard = Arc::new(QuestionsGuard(questions.clone()));
            for _ in 0..threads {
                store.readers.push(reader::start(file.clone(), guard.clone()).map_err(failed)?);
            }
        }
        Ok(store)
    }

    /// Creates or upgrades the tables, and the file if there is none. It blocks, and so does every other writer of the file
    /// until it is done.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be a store, or another process holds its lock for longer than
    /// [`SqliteOptions::busy_timeout`].
    pub fn migrate(path: &Path, options: SqliteOptions) -> Result<Migration, SqliteOpenError> {
        let options = SqliteOptions { create: true, upgrade: true, ..options };
        let (_, before) = open::prepare(&StoreFile::new(path, options)?)?;
        Ok(Migration { before, after: before.max(schema::newest_known_step()) })
    }

    /// Describes a file without opening a store on it, even one that opening would refuse. It makes nothing, and blocks.
    ///
    /// # Errors
    ///
    /// Fails if the file is missing, not a database, or cannot be read.
    #[doc(hidden)]
    pub fn checkup(path: &Path, options: SqliteOptions) -> Result<Checkup, SqliteOpenError> {
        checkup::look(&StoreFile::new(path, SqliteOptions { create: false, ..options })?)
    }

    /// Passes each row of one statement to `on_row`, as text, and returns the column names. It runs on a separate connection
    /// that cannot write, and blocks.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be opened, or the statement is refused or fails.
    #[doc(hidden)]
    pub fn read_rows(
        path: &Path,
        options: SqliteOptions,
        sql: &str,
        on_row: RowCallback<'_>,
    ) -> Result<Vec<String>, ReadOnlyQueryError<SqliteOpenError>> {
        let options = SqliteOptions { create: false, ..options };
        read_only_query::read(&StoreFile::new(path, options).map_err(ReadOnlyQueryError::Open)?, sql, on_row)
    }

    /// Returns how many commits the store has made, and how much was in them.
    #[doc(hidden)]
    pub fn commit_counts(&self) -> CommitCounts {
        let CommitCounters { commits, changes, renewals } = &*self.counters;
        let [commits, changes, renewals] =
            [commits, changes, renewals].map(|count| count.load(Ordering::Relaxed));
        CommitCounts { commits, changes, renewals }
    }

    /// Queues a job for the writer and waits for its reply.
    async fn write<T>(
        &self,
        op: &'static str,
        job: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Job,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.jobs.push(job(reply)).map_err(|refused| refused.store_error(op))?;
        // Without a reply the thread is gone, perhaps after it wrote: a lost reply like any other.
        answer.await.map_err(|_| StoreError::transient(NAME, op, QueueError::Closed))?
    }

    /// Does some work in the transaction of the next group of changes.
    async fn write_chore<T: Send + 'static>(
        &self,
        op: &'static str,
        kind: ChoreKind,
        work: impl Fn(&Connection, ChoreContext) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write(op, |reply| Job::Chore(Box::new(ChoreJob { kind, work, outcome: None, reply }))).await
    }

    /// Queues a question for the readers and waits for its answer.
    async fn read<T: Send + 'static>(
        &self,
        op: &'static str,
        look: impl FnOnce(&mut reader::FileSnapshot<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        ask(&self.questions, op, move |reader| reader.read(op, look)).await
    }

    /// Queues a question for the thread that answers operators.
    async fn ask_browser<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Reader) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        ask(&self.browsing, "browse", question).await
    }

    /// Orders all new rows, so that upkeep and lists find them. A failure is logged: rows that were ordered before are
    /// still found.
    async fn order_rows(&self) {
        if matches!(self.read("order rows", |view| order::has_new_rows(view.connection)).await, Ok(false)) {
            return;
        }
        loop {
            let step = |connection: &Connection, _| order::order_rows(connection);
            match self.write_chore("order rows", ChoreKind::Step, step).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "new records are not ordered yet");
                    return;
                }
            }
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // The writer goes last: the connection that closes last moves the log into the file and removes the log.
        self.questions.close();
        self.browsing.close();
        // A thread that panicked has no caller left; here and below.
        self.readers.drain(..).for_each(|reader| drop(reader.join()));
        self.jobs.close();
        // A closure may have held the store's last handle; then this is the writer itself, and it ends after this job.
        if let Some(writer) = self.writer.take_if(|writer| writer.thread().id() != thread::current().id()) {
            let _ = writer.join();
        }
    }
}

impl Store for SqliteStore {
    fn facts(&self) -> StoreFacts {
        // All processes on the file are on one machine, and share its clock.
        StoreFacts { name: NAME, clock: StoreClock::Shared, durability: Durability::Durable }
    }

    fn load(&self, id: RecordId) -> BoxFuture<'_, Result<Option<StoredRecord>, StoreError>> {
        Box::pin(self.read("load", move |view| view.load(id)))
    }

    fn commit(
        &self,
        change: Arc<Change>,
        send_by: Option<Instant>,
    ) -> BoxFuture<'_, Result<Commit, StoreError>> {
        const OP: &str = "commit";
        Box::pin(async move {
            let limit = send_by.map(SendDeadline::new);
            let (reply, answer) = oneshot::channel();
            let job = Job::Commit(CommitJob { change, limit: limit.clone(), reply });
            self.jobs.push(job).map_err(|refused| refused.store_error(OP))?;
            // Without a reply the thread is gone, as in [`SqliteStore::write`].
            let gone = || Err(StoreError::transient(NAME, OP, QueueError::Closed));
            reply_or_withdraw(answer, limit, (NAME, OP)).await.unwrap_or_else(gone)
        })
    }

    fn renew(
        &self,
        leases: Vec<(RecordId, Version)>,
    ) -> BoxFuture<'_, Result<Vec<RenewOutcome>, StoreError>> {
        Box::pin(self.write("renew", |reply| Job::Renew(RenewJob { leases, reply })))
    }

    fn due(
        &self,
        state: State,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        Box::pin(async move {
            self.order_rows().await;
            self.read("find due records", move |view| view.due(state, after.as_ref(), limit)).await
        })
    }

    fn reap(
        &self,
        target: ReapTarget,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<ReapStep, StoreError>> {
        let step = move |connection: &Connection, context| {
            reap::step(connection, target, after.as_ref(), limit, context)
        };
        Box::pin(self.write_chore("reap", ChoreKind::Step, step))
    }

    fn setting(&self, name: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let name = name.to_owned();
        Box::pin(self.read("read a setting", move |view| reader::setting(view.connection, &name)))
    }

    fn compare_and_set(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> BoxFuture<'_, Result<SetOutcome, StoreError>> {
        let name = name.to_owned();
        let set = move |connection: &Connection, _| set(connection, &name, expected.as_ref(), &value);
        Box::pin(self.write_chore("write a setting", ChoreKind::Setting, set))
    }

    fn bodies(&self) -> Option<&dyn BodyStore> {
        Some(self)
    }

    fn browse(&self) -> Option<&dyn BrowseStore> {
        Some(self)
    }

    fn evidence(&self) -> Option<&dyn EvidenceStore> {
        Some(self)
    }

    fn sql(&self) -> Option<&dyn SqlStore> {
        Some(self)
    }

    fn copy(&self) -> Option<&dyn CopyStore> {
        Some(self)
    }
}

impl BodyStore for SqliteStore {
    fn bodies(&self, id: RecordId, birth: Nonce) -> BoxFuture<'_, Result<Vec<LoadedBody>, StoreError>> {
        Box::pin(self.read("read bodies", move |view| view.bodies(id, birth)))
    }
}

/// Path and options of the file, for every thread that opens it.
#[derive(Clone, Debug)]
struct StoreFile {
    path: PathBuf,
    options: SqliteOptions,
}

impl StoreFile {
    fn new(path: &Path, options: SqliteOptions) -> Result<StoreFile, SqliteOpenError> {
        // An absolute path is always a file: SQLite would take `:memory:` and `file:…` for something else.
        let absolute = std::path::absolute(path).map_err(|error| open::failure(path, error))?;
        Ok(StoreFile { path: absolute, options })
    }

    fn now(&self) -> Timestamp {
        self.options.clock.now()
    }
}

async fn ask<T: Send + 'static>(
    questions: &Questions,
    op: &'static str,
    question: impl FnOnce(&mut Reader) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let (reply, answer) = oneshot::channel();
    // A caller that left no longer needs the answer.
    let question: reader::Question = Box::new(move |reader| drop(reply.send(question(reader))));
    questions.push(question).map_err(|refused| refused.store_error(op))?;
    answer.await.map_err(|_| StoreError::transient(NAME, op, QueueError::Closed).unwritten())?
}

fn set(
    connection: &Connection,
    name: &str,
    expected: Option<&Bytes>,
    value: &Bytes,
) -> rusqlite::Result<SetOutcome> {
    let new = &value[..];
    let written = match expected {
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
        0 => Ok(SetOutcome::of(reader::setting(connection, name)?, value)),
        _ => Ok(SetOutcome::Won),
    }
}

const NAME: &str = "sqlite";

/// Threads for replays and upkeep. Reads come from memory for the most part; four keep a slow disk from queueing replays.
const READERS: usize = 4;
