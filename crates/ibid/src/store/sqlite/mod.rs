//! Records in one SQLite file: the embedded store.
//!
//! One thread owns the only connection that writes and commits whatever waits for it together, so that many
//! requests share one flush. A few threads read. The async side only queues a job and waits for its reply; it never
//! touches a connection. Several processes may share the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{Change, Commit, History, StoredRecord};
use ibid_core::fingerprint::SecretId;
use ibid_core::reap::{ReapCount, ReapStep, ReapTarget};
use ibid_core::record::{Nonce, State, Version};
use ibid_core::scope::RecordId;
use ibid_core::store::{
    BoxFuture, Browse, RecordCounts, RecordFilter, RenewOutcome, SetOutcome, SqlStore, Store, StoreError,
};
use ibid_core::time::Timestamp;
use tokio::sync::oneshot;

use self::queue::{Lane, Queue, Serving};
use self::reader::Ask;
use self::sql_side::OnDisk;
use self::writer::Job;
use super::checkup::Checkup;
use super::clock::Clock;
use super::read_only_query::{ReadOnlyQueryError, RowCallback};

mod batch;
mod checkup;
mod evidence;
mod failure;
mod open;
mod queue;
mod read_only_query;
mod reader;
mod reap;
mod row;
mod run;
mod schema;
mod sql_side;
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
/// The store's tables are called `ibid_…`, so the file may be the one that an application keeps its own tables in. The
/// store changes nothing of the application's but the journal mode, which becomes WAL and stays so; while other
/// connections hold a file in another mode, opening fails. The header (`application_id`, `user_version`) is the
/// application's.
///
/// The application writes either by [`SqliteStore::run`] or on connections of its own. On those it begins with
/// `BEGIN IMMEDIATE`, because a transaction that reads first and then writes fails whenever somebody else wrote in
/// between; it sets a busy timeout and keeps transactions short, because the store waits for them.
///
/// A row may refer to a record: `record blob references ibid_record(id) on delete set null`, with an index on that
/// column. When the record goes, the reference is cleared and the row stays. A reference that forbids the removal keeps
/// the record for as long as the row is there; a deferred one must not, for it makes every purge fail.
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
    jobs: Arc<Queue<Job>>,
    asks: Arc<Queue<Ask>>,
    readers: Vec<JoinHandle<()>>,
    writer: Option<JoinHandle<()>>,
    clock: Clock,
    on_disk: OnDisk,
}

/// How to open a [`SqliteStore`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// The clock that all instants come from.
    pub clock: Clock,
    /// Whether a file that does not exist is made, and the store's tables in a file that has none; if not, opening it is
    /// refused.
    pub create: bool,
    /// How long a write waits while another process writes, before it fails as transient.
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
            // Another process holds the lock for one batch, some milliseconds. A second is a stalled disk, and then
            // the caller's own deadlines should decide.
            busy_timeout: Duration::from_secs(1),
            file_bytes_max: None,
        }
    }
}

impl SqliteStore {
    /// Opens the file, makes or upgrades its tables, and starts the store's threads. It blocks while it does so.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<SqliteStore, SqliteOpenError> {
        let place = Place::new(path, options)?;
        let connection = open::prepare(&place)?;
        let mut store = SqliteStore {
            jobs: Queue::new(),
            asks: Queue::new(),
            readers: Vec::new(),
            writer: None,
            clock: place.options.clock.clone(),
            on_disk: OnDisk::default(),
        };
        // On an error the store is dropped, and with it the threads that did start.
        let failed = |error| open::failed(&place.path, error);
        store.writer = Some(writer::start(place.clone(), connection, store.jobs.clone()).map_err(failed)?);
        let serving = Arc::new(Serving(store.asks.clone()));
        for _ in 0..READERS {
            store.readers.push(reader::start(place.clone(), serving.clone()).map_err(failed)?);
        }
        Ok(store)
    }

    /// Looks at a file without opening a store on it: what would be refused is described. It makes nothing, and blocks
    /// while it looks.
    pub fn checkup(path: &Path, options: SqliteOptions) -> Result<Checkup, SqliteOpenError> {
        checkup::look(&Place::new(path, SqliteOptions { create: false, ..options })?)
    }

    /// Gives each row of one statement to `each`, as text; the names of the columns. It runs on a connection of its own
    /// that can't write, and blocks.
    pub fn read_rows(
        path: &Path,
        options: SqliteOptions,
        sql: &str,
        on_row: RowCallback<'_>,
    ) -> Result<Vec<String>, ReadOnlyQueryError<SqliteOpenError>> {
        let options = SqliteOptions { create: false, ..options };
        read_only_query::read(&Place::new(path, options).map_err(ReadOnlyQueryError::Open)?, sql, on_row)
    }

    /// Queues a job for the writer and waits for its reply.
    async fn write<T>(
        &self,
        op: &'static str,
        lane: Lane,
        job: impl FnOnce(oneshot::Sender<T>) -> Job,
    ) -> Result<T, StoreError> {
        hand_in(&self.jobs, op, lane, job).await
    }

    /// Queues a question for the readers and waits for its reply.
    async fn ask<T>(
        &self,
        op: &'static str,
        ask: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Ask,
    ) -> Result<T, StoreError> {
        hand_in(&self.asks, op, Lane::Usual, ask).await?
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // The writer goes last: whoever closes the file last moves the log into it and removes the log.
        self.asks.close();
        // A thread that panicked has nobody left to tell; here and below.
        self.readers.drain(..).for_each(|reader| drop(reader.join()));
        self.jobs.close();
        // A closure may have held the store's last handle; then this is the writer itself, and it ends after this job.
        if let Some(writer) = self.writer.take_if(|writer| writer.thread().id() != thread::current().id()) {
            let _ = writer.join();
        }
    }
}

impl Store for SqliteStore {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Result<Vec<Option<StoredRecord>>, StoreError>> {
        Box::pin(self.ask("load", |reply| Ask::Load { ids, reply }))
    }

    fn commit(&self, changes: Vec<Arc<Change>>) -> BoxFuture<'_, Vec<Result<Commit, StoreError>>> {
        Box::pin(async move {
            let count = changes.len();
            match self.write("commit", Lane::Usual, |reply| Job::Commit { changes, reply }).await {
                Ok(fates) => fates,
                Err(error) => {
                    let error = Arc::new(error);
                    (0..count).map(|_| Err(StoreError::transient(KIND, "commit", error.clone()))).collect()
                }
            }
        })
    }

    fn renew(
        &self,
        leases: Vec<(RecordId, Version)>,
    ) -> BoxFuture<'_, Result<Vec<RenewOutcome>, StoreError>> {
        // A lease that lapses in a queue costs an `unknown`; everything else there can wait a batch longer.
        Box::pin(
            async move { self.write("renew", Lane::Urgent, |reply| Job::Renew { leases, reply }).await? },
        )
    }

    fn due(&self, state: State, limit: u32) -> BoxFuture<'_, Result<Vec<StoredRecord>, StoreError>> {
        Box::pin(self.ask("find due records", move |reply| Ask::Due { state, limit, reply }))
    }

    fn reap(&self, course: ReapTarget, from: i64, limit: u32) -> BoxFuture<'_, Result<ReapStep, StoreError>> {
        Box::pin(async move {
            self.write("reap", Lane::Usual, |reply| Job::Reap { course, from, limit, reply }).await?
        })
    }

    fn count_reapable(&self, course: ReapTarget) -> BoxFuture<'_, Result<ReapCount, StoreError>> {
        Box::pin(self.ask("count what would go", move |reply| Ask::Ripe { course, reply }))
    }

    fn find_unknown_secret(
        &self,
        known: Vec<SecretId>,
    ) -> BoxFuture<'_, Result<Option<SecretId>, StoreError>> {
        Box::pin(self.ask("look for secrets", |reply| Ask::OtherSecret { known, reply }))
    }

    fn bodies(&self, id: RecordId, birth: Nonce) -> BoxFuture<'_, Result<Vec<(u32, Bytes)>, StoreError>> {
        Box::pin(self.ask("read bodies", move |reply| Ask::Bodies { id, birth, reply }))
    }

    fn sql(&self) -> Option<&dyn SqlStore> {
        Some(self)
    }

    fn setting(&self, name: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let name = name.to_owned();
        Box::pin(self.ask("read a setting", |reply| Ask::Setting { name, reply }))
    }

    fn compare_and_set(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> BoxFuture<'_, Result<SetOutcome, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            let job = |reply| Job::Set { name, expected, value, reply };
            self.write("write a setting", Lane::Usual, job).await?
        })
    }
}

impl Browse for SqliteStore {
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Vec<StoredRecord>, StoreError>> {
        Box::pin(self.ask("list", |reply| Ask::List { filter, reply }))
    }

    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<(Timestamp, History)>, StoreError>> {
        Box::pin(self.ask("read the history", move |reply| Ask::History { id, reply }))
    }

    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>> {
        Box::pin(self.ask("count", |reply| Ask::Count { reply }))
    }
}

/// Where the file is and how it is opened, for every thread that opens it.
#[derive(Clone, Debug)]
struct Place {
    path: PathBuf,
    options: SqliteOptions,
}

impl Place {
    fn new(path: &Path, options: SqliteOptions) -> Result<Place, SqliteOpenError> {
        // An absolute path is always a file: SQLite would take `:memory:` and `file:…` for something else.
        let absolute = std::path::absolute(path).map_err(|error| open::failed(path, error))?;
        Ok(Place { path: absolute, options })
    }

    fn now(&self) -> Timestamp {
        self.options.clock.now()
    }
}

async fn hand_in<J: queue::Weigh, T>(
    queue: &Queue<J>,
    op: &'static str,
    lane: Lane,
    job: impl FnOnce(oneshot::Sender<T>) -> J,
) -> Result<T, StoreError> {
    let (reply, answer) = oneshot::channel();
    let refused = |refused| StoreError::transient(KIND, op, refused).unwritten();
    queue.push(job(reply), lane).map_err(refused)?;
    // Without a reply the thread is gone, perhaps after it wrote: a lost reply like any other.
    answer.await.map_err(|_| StoreError::transient(KIND, op, queue::Refused::Closed))
}

const KIND: &str = "sqlite";

/// Reads come from memory for the most part; four threads are enough to keep a slow `count` out of a replay's way.
const READERS: usize = 4;
