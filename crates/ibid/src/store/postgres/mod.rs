//! Records in a PostgreSQL database, shared by many processes.
//!
//! Most verbs are one statement over arrays, in one round trip and one transaction, however many records they are about. The
//! server's clock sets every instant. A session of ours may start with settings (`connect.rs`); nothing depends on it, so that
//! a transaction pooler may stand between.

use std::collections::HashMap;
use std::sync::Arc;
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

use self::batch::Batch;
use self::columns::Numbering;
use self::connect::{Place, Pools};
use self::flight::Tids;
use self::row::Policies;
use super::checkup::Checkup;
use super::read_only_query::{ReadOnlyQueryError, RowCallback};

mod ask;
mod batch;
mod checkup;
mod columns;
mod connect;
mod evidence;
mod failure;
mod flight;
mod migrate;
mod open;
mod read_only_query;
mod reap;
mod row;
mod sql_side;
mod tls;

pub use self::open::PostgresOpenError;

/// A store in a PostgreSQL database.
///
/// A commit returns after its write is durable, as far as the server is set up to be: a server that may lose commits
/// is refused unless the options accept it.
///
/// ```no_run
/// use ibid::store::postgres::{PostgresOptions, PostgresStore};
///
/// # async fn open() -> Result<(), Box<dyn std::error::Error>> {
/// let url = "postgres://ibid@127.0.0.1/payments";
/// let store = PostgresStore::open(url, PostgresOptions::default()).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct PostgresStore {
    place: Arc<Place>,
    pools: Pools,
    policies: Policies,
    numbering: Numbering,
    tids: Tids,
}

/// How to open a [`PostgresStore`]. Those that a URL may set stand there as parameters and win over these.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// Whether missing tables are made and old ones upgraded; if not, opening is refused unless they are as they
    /// should be.
    pub migrate: bool,
    /// Whether a server that may lose commits is used all the same. In a URL: `accept_weak_durability=true`.
    pub accept_weak_durability: bool,
    /// Whether statements are prepared once per connection. Turn it off behind a pooler that hands each transaction to
    /// another session and does not follow prepared statements. In a URL: `prepare=false`.
    pub prepare: bool,
    /// Connections at most. In a URL: `connections_max=16`.
    pub connections_max: usize,
    /// How long a call waits for a connection, before it fails as transient.
    pub connection_wait: Duration,
}

impl PostgresOptions {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut PostgresOptions)) -> PostgresOptions {
        change(&mut self);
        self
    }
}

impl Default for PostgresOptions {
    fn default() -> Self {
        PostgresOptions {
            migrate: true,
            accept_weak_durability: false,
            prepare: true,
            // The engine has two batches under way; the rest is for renewals, replays and upkeep beside them. Eight
            // processes with eight each stay below the hundred that a server allows by default.
            connections_max: 8,
            // A statement takes milliseconds: who waited for a second will not do better in two.
            connection_wait: Duration::from_secs(1),
        }
    }
}

impl PostgresStore {
    /// Connects, looks whether the server keeps what it commits, and makes or upgrades the tables.
    pub async fn open(url: &str, options: PostgresOptions) -> Result<PostgresStore, PostgresOpenError> {
        let place = Arc::new(Place::new(url, options)?);
        open::prepare(&place).await?;
        let pools = Pools::new(&place);
        let (policies, numbering, tids) = (Policies::default(), Numbering::default(), Tids::default());
        Ok(PostgresStore { place, pools, policies, numbering, tids })
    }

    /// Makes or upgrades the tables: the step that they were at (0: none), and the step that they are at now.
    pub async fn migrate(url: &str, options: PostgresOptions) -> Result<(u32, u32), PostgresOpenError> {
        let place = Place::new(url, PostgresOptions { migrate: true, ..options })?;
        let before = open::schema(&place).await?;
        open::prepare(&place).await?;
        Ok((before, migrate::KNOWN))
    }

    /// The step that the tables at `url` are at (0: none).
    pub async fn schema(url: &str, options: PostgresOptions) -> Result<u32, PostgresOpenError> {
        open::schema(&Place::new(url, options)?).await
    }

    /// Looks at a server without opening a store on it: what would be refused is described. It writes nothing.
    pub async fn checkup(url: &str, options: PostgresOptions) -> Result<Checkup, PostgresOpenError> {
        checkup::look(&Place::new(url, options)?).await
    }

    /// Gives each row of one statement to `each`, as text; the names of the columns. It runs in a transaction of its own
    /// that can't write, so the statement may be anybody's who may read the database.
    pub async fn read_rows(
        url: &str,
        options: PostgresOptions,
        sql: &str,
        on_row: RowCallback<'_>,
    ) -> Result<Vec<String>, ReadOnlyQueryError<PostgresOpenError>> {
        read_only_query::read(&Place::new(url, options).map_err(ReadOnlyQueryError::Open)?, sql, on_row).await
    }

    /// Where `url` leads, without user and password: the form that may be shown and logged.
    pub fn place_of(url: &str) -> Result<String, PostgresOpenError> {
        connect::shown_url(url)
    }

    /// The statements that take a schema from step `from` (0: no tables) to the newest, for a person to run.
    pub fn migration_sql(from: u32) -> String {
        migrate::sql(from)
    }

    /// The newest step of the schema that this program knows.
    pub fn newest_schema() -> u32 {
        migrate::KNOWN
    }

    /// Where the database is, without user and password.
    pub fn place(&self) -> String {
        self.place.shown()
    }
}

impl Store for PostgresStore {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Result<Vec<Option<StoredRecord>>, StoreError>> {
        Box::pin(async move {
            let found = self.find(&ids).await?;
            let mut by_id: HashMap<RecordId, StoredRecord> =
                found.into_iter().map(|stored| (stored.record.id, stored)).collect();
            // An id may be asked for twice.
            let last = |place: usize| !ids[place + 1..].contains(&ids[place]);
            let place = |(place, id)| if last(place) { by_id.remove(id) } else { by_id.get(id).cloned() };
            Ok(ids.iter().enumerate().map(place).collect())
        })
    }

    fn commit(&self, changes: Vec<Arc<Change>>) -> BoxFuture<'_, Vec<Result<Commit, StoreError>>> {
        Box::pin(async move {
            if changes.is_empty() {
                return Vec::new();
            }
            match self.pools.hot("commit").await {
                Ok(connection) => {
                    Batch::run(&connection, &self.policies, &self.numbering, &self.tids, &changes).await
                }
                Err(error) => {
                    let transient = error.is_transient();
                    let error = Arc::new(error);
                    let shared = |_| match transient {
                        true => Err(StoreError::transient(KIND, "commit", error.clone())),
                        false => Err(StoreError::lasting(KIND, "commit", error.clone())),
                    };
                    changes.iter().map(shared).collect()
                }
            }
        })
    }

    fn renew(
        &self,
        leases: Vec<(RecordId, Version)>,
    ) -> BoxFuture<'_, Result<Vec<RenewOutcome>, StoreError>> {
        Box::pin(async move { self.renew_all(&leases).await })
    }

    fn due(&self, state: State, limit: u32) -> BoxFuture<'_, Result<Vec<StoredRecord>, StoreError>> {
        Box::pin(self.find_due(state, limit))
    }

    fn reap(&self, course: ReapTarget, from: i64, limit: u32) -> BoxFuture<'_, Result<ReapStep, StoreError>> {
        Box::pin(self.reap_step(course, from, limit))
    }

    fn count_reapable(&self, course: ReapTarget) -> BoxFuture<'_, Result<ReapCount, StoreError>> {
        Box::pin(self.count_ripe(course))
    }

    fn find_unknown_secret(
        &self,
        known: Vec<SecretId>,
    ) -> BoxFuture<'_, Result<Option<SecretId>, StoreError>> {
        Box::pin(self.find_other_secret(known))
    }

    fn parallel_batches(&self) -> usize {
        // One is sent while the other is flushed. With more each is smaller, and a statement has a price of its own, about
        // that of seven changes (docs/decisions/0006).
        2
    }

    fn shares_commits(&self) -> bool {
        false
    }

    fn bodies(&self, id: RecordId, birth: Nonce) -> BoxFuture<'_, Result<Vec<(u32, Bytes)>, StoreError>> {
        Box::pin(self.find_bodies(id, birth))
    }

    fn sql(&self) -> Option<&dyn SqlStore> {
        Some(self)
    }

    fn setting(&self, name: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move { self.find_setting(&name).await })
    }

    fn compare_and_set(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> BoxFuture<'_, Result<SetOutcome, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move { self.replace_setting(&name, expected, value).await })
    }
}

impl Browse for PostgresStore {
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Vec<StoredRecord>, StoreError>> {
        Box::pin(self.find_fitting(filter))
    }

    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<(Timestamp, History)>, StoreError>> {
        Box::pin(self.find_history(id))
    }

    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>> {
        Box::pin(self.count_all())
    }
}

const KIND: &str = "postgres";
