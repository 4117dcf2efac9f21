//! Records in a MySQL or MariaDB database, shared by many processes.
//!
//! New records and their finishes are batched: many of them are one text in one packet (`hot_path/`). Every other change is one
//! transaction (`plain_path.rs`). The server's clock sets every instant. A row's own version tells who won a race, never a count
//! of affected rows, whose meaning depends on the client.

use std::sync::Arc;
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

use self::pool::MysqlPools;
use self::target::MysqlTarget;
use super::checkup::Checkup;
use super::commit_queue::CommitQueue;
use super::policy_cache::PolicyCache;
use super::read_only_query::{ReadOnlyQueryError, RowCallback};
use super::schema_steps::Migration;

mod browse;
mod checkup;
mod connection;
mod copy;
mod error;
mod evidence;
mod hot_path;
mod literal;
mod migrate;
mod open;
mod plain_path;
mod policies;
mod pool;
mod read;
mod read_only_query;
mod reap;
mod row;
mod row_source;
mod sql_store;
mod target;
mod tls;

pub use self::open::MysqlOpenError;
#[doc(hidden)]
pub use super::commit_queue::BatchCounts;

/// A store in a MySQL or MariaDB database.
///
/// A commit returns after its write is durable, as far as the server is set up to be: a server that may lose commits
/// is refused unless the options accept it.
///
/// ```no_run
/// use ibid::store::mysql::{MysqlOptions, MysqlStore};
///
/// # async fn open() -> Result<(), Box<dyn std::error::Error>> {
/// let url = "mysql://ibid@127.0.0.1/payments";
/// let store = MysqlStore::open(url, MysqlOptions::default()).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct MysqlStore {
    core: Arc<MysqlCore>,
    commits: CommitQueue<MysqlCore>,
}

/// The part of a store that its tasks share.
#[derive(Debug)]
struct MysqlCore {
    target: Arc<MysqlTarget>,
    pools: MysqlPools,
    policies: PolicyCache,
}

/// Options of a [`MysqlStore`]. URL parameters override these fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MysqlOptions {
    /// Create the tables if there are none. If not, opening fails where they are missing.
    pub migrate: bool,
    /// Upgrade tables of an earlier step. If not, opening fails, and an operator runs `ibid migrate`: the first new process of
    /// a rollout should not change the tables of those that still run.
    pub upgrade: bool,
    /// Use a server that may lose commits. In a URL: `durability=weak`.
    pub accept_weak_durability: bool,
    /// Batch new records and their finishes. Without it every change is one transaction: slower, and the same otherwise. In
    /// a URL: `hot_path=false`.
    pub hot_path: bool,
    /// Largest number of connections. In a URL: `connections_max=16`.
    pub connections_max: usize,
    /// Longest wait of a call for a connection; then it fails as transient.
    pub connection_wait: Duration,
    /// Longest wait for the reply to a statement; then the connection is closed, and the outcome counts as unknown. It must be
    /// longer than any statement of ibid may take, those that wait for locks included.
    pub reply_wait: Duration,
    /// Write batches on MariaDB as on MySQL, for tests of these statements.
    #[doc(hidden)]
    pub portable_statements: bool,
}

impl MysqlOptions {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut MysqlOptions)) -> MysqlOptions {
        change(&mut self);
        self
    }
}

impl Default for MysqlOptions {
    fn default() -> Self {
        MysqlOptions {
            migrate: true,
            upgrade: false,
            accept_weak_durability: false,
            hot_path: true,
            // Four for flights, two for slow reads, four for all other statements. A dozen processes with ten each stay below
            // the 151 that a server allows by default.
            connections_max: 10,
            // A statement takes milliseconds: a caller that waited for a second will not do better in two.
            connection_wait: Duration::from_secs(1),
            // The slowest are questions of operators, which the server ends after 8 s (`browse.rs`).
            reply_wait: Duration::from_secs(20),
            portable_statements: false,
        }
    }
}

impl MysqlStore {
    /// Connects, checks that the server keeps what it commits, and creates or upgrades the tables as the options allow.
    ///
    /// # Errors
    ///
    /// Fails if the server is not one that ibid may write to, or its tables are not those of this program.
    ///
    /// # Cancel safety
    ///
    /// As for [`MysqlStore::migrate`], if the options allow it to create or upgrade the tables. Otherwise it changes
    /// nothing.
    pub async fn open(url: &str, options: MysqlOptions) -> Result<MysqlStore, MysqlOpenError> {
        let target = Arc::new(MysqlTarget::new(url, options)?);
        open::prepare(&target).await?;
        let pools = MysqlPools::new(&target);
        let core = Arc::new(MysqlCore { target, pools, policies: PolicyCache::default() });
        let (lanes, workers) = (core.pools.lanes(), core.pools.plain_commits());
        Ok(MysqlStore { commits: CommitQueue::start(core.clone(), lanes, workers), core })
    }

    /// Creates or upgrades the tables. Returns the step that they were at and the step that they are at now.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be used, or a lock on a table cannot be had within about a minute.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection. Steps before are taken; of the step in flight, some statements may have
    /// run, and the server may finish the one that it has. Call it again: every statement can be repeated.
    pub async fn migrate(url: &str, options: MysqlOptions) -> Result<Migration, MysqlOpenError> {
        let target = MysqlTarget::new(url, MysqlOptions { migrate: true, upgrade: true, ..options })?;
        let before = open::schema(&target).await?;
        open::prepare(&target).await?;
        Ok(Migration { before, after: before.max(migrate::newest_known_step()) })
    }

    /// Returns the step that the tables at `url` are at (0: none).
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be used, or the tables are not ibid's.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn schema(url: &str, options: MysqlOptions) -> Result<u32, MysqlOpenError> {
        open::schema(&MysqlTarget::new(url, options)?).await
    }

    /// Describes a server without opening a store on it, also one that opening would refuse. It writes nothing.
    ///
    /// # Errors
    ///
    /// Fails if no server answers.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    #[doc(hidden)]
    pub async fn checkup(url: &str, options: MysqlOptions) -> Result<Checkup, MysqlOpenError> {
        checkup::look(&MysqlTarget::new(url, options)?).await
    }

    /// Passes each row of one statement to `on_row`, as text, and returns the names of the columns. The statement runs in a
    /// read-only transaction, so it may come from any user who may read the database.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be reached or refuses the statement.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads. `on_row` may have been called for some rows.
    #[doc(hidden)]
    pub async fn read_rows(
        url: &str,
        options: MysqlOptions,
        sql: &str,
        on_row: RowCallback<'_>,
    ) -> Result<Vec<String>, ReadOnlyQueryError<MysqlOpenError>> {
        let target = MysqlTarget::new(url, options).map_err(ReadOnlyQueryError::Open)?;
        read_only_query::read(&target, sql, on_row).await
    }

    /// Returns `url` without user, password and parameters: the form that may be shown and logged.
    ///
    /// # Errors
    ///
    /// Fails if the URL cannot be parsed.
    pub fn display_url_of(url: &str) -> Result<String, MysqlOpenError> {
        target::display_url_of(url)
    }

    /// Returns the statements that take a schema from step `from` (0: no tables) to the newest, for an operator to run.
    pub fn migration_sql(from: u32) -> String {
        migrate::sql(from)
    }

    /// Returns the newest step of the schema that this program knows.
    pub fn newest_schema() -> u32 {
        migrate::newest_known_step()
    }

    /// Returns the URL of the database without user and password.
    pub fn display_url(&self) -> String {
        self.core.target.display_url()
    }

    /// Returns how many batches were sent, and how many changes were in them.
    #[doc(hidden)]
    #[doc(hidden)]
    pub fn batch_counts(&self) -> BatchCounts {
        self.commits.counts()
    }
}

impl Store for MysqlStore {
    fn facts(&self) -> StoreFacts {
        let durability = match self.core.target.options.accept_weak_durability {
            true => Durability::Weak { reason: "weak durability was accepted".to_owned() },
            false => Durability::Durable,
        };
        StoreFacts { name: KIND, clock: StoreClock::Shared, durability }
    }

    fn load(&self, id: RecordId) -> BoxFuture<'_, Result<Option<StoredRecord>, StoreError>> {
        Box::pin(self.core.load(id))
    }

    fn commit(
        &self,
        change: Arc<Change>,
        send_by: Option<Instant>,
    ) -> BoxFuture<'_, Result<Commit, StoreError>> {
        Box::pin(self.commits.commit(change, send_by))
    }

    fn renew(
        &self,
        leases: Vec<(RecordId, Version)>,
    ) -> BoxFuture<'_, Result<Vec<RenewOutcome>, StoreError>> {
        Box::pin(async move { self.core.renew_leases(&leases).await })
    }

    fn due(
        &self,
        state: State,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        Box::pin(self.core.find_due(state, after, limit))
    }

    fn reap(
        &self,
        target: ReapTarget,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<ReapStep, StoreError>> {
        Box::pin(self.core.reap_step(target, after, limit))
    }

    fn setting(&self, name: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move { self.core.find_setting(&name).await })
    }

    fn compare_and_set(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> BoxFuture<'_, Result<SetOutcome, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move { self.core.replace_setting(&name, expected, value).await })
    }

    fn bodies(&self) -> Option<&dyn BodyStore> {
        Some(&*self.core)
    }

    fn browse(&self) -> Option<&dyn BrowseStore> {
        Some(&*self.core)
    }

    fn evidence(&self) -> Option<&dyn EvidenceStore> {
        Some(&*self.core)
    }

    fn sql(&self) -> Option<&dyn SqlStore> {
        Some(&*self.core)
    }

    fn copy(&self) -> Option<&dyn CopyStore> {
        Some(&*self.core)
    }
}

impl BodyStore for MysqlCore {
    fn bodies(&self, id: RecordId, birth: Nonce) -> BoxFuture<'_, Result<Vec<LoadedBody>, StoreError>> {
        Box::pin(self.find_bodies(id, birth))
    }
}

const KIND: &str = "mysql";
