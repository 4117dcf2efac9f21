//! The PostgreSQL store, tested by the contract suite and against what only a server can do to it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid_core::change::{Change, Commit, Draft};
use ibid_core::record::{Flags, Record, State};
use ibid_core::store::{BoxFuture, BrowseStore, Store, StoreError};
use ibid_testkit::contract::{
    self, LONG, StoreUnderTest, TestRecord, commit_all, draft, finish_with, fresh, insert, load, replace,
};
use ibid_testkit::postgres::{Postgres, PostgresRelease};
use tokio_postgres::{Client, NoTls};

mod bodies;
mod checkup;
mod commit_settings;
mod failover;
mod faults;
mod insert_race;
mod lease_scan;
mod locked_upkeep;
mod locks;
mod open;
mod plans;
mod policies;
mod pooler;
mod reap_order;
mod row_location;
mod slow_reads;
mod stress;
#[cfg(feature = "postgres-tls")]
mod tls;
mod unreadable_rows;
mod upkeep;

/// Makes two tests of a function that takes a [`PostgresRelease`].
macro_rules! on_every_release {
    ($name:ident) => {
        mod $name {
            use ibid_testkit::postgres::PostgresRelease;

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn on_the_system_release() {
                super::$name(PostgresRelease::System).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn on_release_18() {
                super::$name(PostgresRelease::Eighteen).await;
            }
        }
    };
}
use on_every_release;

struct PostgresUnderTest(Arc<PostgresStore>);

impl StoreUnderTest for PostgresUnderTest {
    fn store(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    /// Waits, because the clock is the server's.
    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(by))
    }
}

fn options() -> PostgresOptions {
    // Other tests keep the machine busy; that should not fail a test.
    PostgresOptions::default().with(|options| options.connection_wait = Duration::from_secs(30))
}

async fn open(server: &Postgres, database: &str) -> Arc<PostgresStore> {
    open_with(server, database, |_| {}).await
}

async fn open_with(
    server: &Postgres,
    database: &str,
    change: impl FnOnce(&mut PostgresOptions),
) -> Arc<PostgresStore> {
    let mut options = options();
    change(&mut options);
    let store = PostgresStore::open(&server.url_for(database), options).await;
    Arc::new(store.expect("the store opens"))
}

/// Opens a separate connection to the same database.
async fn stranger(server: &Postgres, database: &str) -> Client {
    let (client, connection) =
        tokio_postgres::connect(&server.url_for(database), NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

/// A begin under a fresh name, as the engine writes it.
fn begin() -> Change {
    fresh(&TestRecord::fresh(), LONG)
}

/// A finish of the record that was read, as the engine writes it.
fn finish(record: &Record) -> Change {
    finish_with(record, b"done")
}

/// A begin that is not eligible for the hot path.
fn other_begin(name: &TestRecord) -> Change {
    insert(name, Draft { due_in: Some(LONG), ..draft(name, State::InProgress) })
}

/// Longer than every lease and retention that a test lets pass.
const SECOND: Duration = Duration::from_secs(1);

/// Moves every stored instant back by `time`, as if it had passed: the server's clock can't be moved.
fn pass(server: &Postgres, database: &str, time: Duration) {
    let record = "created_at ran_at completed_at due_at expires_at purge_at reap_at watch_at";
    let all = [("record", record), ("body", "born_at"), ("policy", "put_at seen_at"), ("walk", "at")].map(
        |(table, instants)| {
            let earlier =
                instants.split(' ').map(|instant| format!("{instant} = {instant} - {}", time.as_micros()));
            format!("update ibid_{table} set {}", earlier.collect::<Vec<_>>().join(", "))
        },
    );
    server.sql(database, &all.join("; "));
}

fn name_of(record: &Record) -> TestRecord {
    TestRecord { id: record.id, identity: record.identity.clone() }
}

/// Commits a change as the engine does: retries with the same nonce while its fate is unknown.
async fn commit_patiently(store: &PostgresStore, change: &Arc<Change>) -> Commit {
    loop {
        match store.commit(change.clone(), None).await {
            Ok(commit) => return commit,
            Err(error) => {
                assert!(error.is_transient(), "an outage is no lasting error: {error:?}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

/// Commits changes all at once, and returns their outcomes in the same order.
async fn commit_each(store: &PostgresStore, changes: &[Arc<Change>]) -> Vec<Result<Commit, StoreError>> {
    join_all(changes.iter().map(|change| store.commit(change.clone(), None))).await
}

/// Returns statements that store so many effects which wait for an operator, with the numbers from 1 on.
fn effects(count: u32) -> String {
    format!(
        "insert into ibid_effect_call (seq, birth, owes, letter, record, name, downstream_key, rules)
           select n, 1, false, false, gen_random_uuid(), 'call', 'key', '{{}}' from generate_series(1, {count}) n;
         insert into ibid_effect (seq, nonce, lease_us, created_at, done_at, count, tries, state, blocked, dead_letter, tenant, kind)
           select n, 1, 1000000, 1, null, 1, 1, 5, false, true, 'shop', 'card' from generate_series(1, {count}) n"
    )
}

/// Returns what operators may ask of the store.
fn browse(store: &PostgresStore) -> &dyn BrowseStore {
    store.browse().expect("it can be browsed")
}

/// Returns whether the change was committed, now or in a try whose reply was lost.
fn was_committed(change: &Change, commit: &Commit) -> bool {
    match commit {
        Commit::Done(_) => true,
        Commit::Conflict(Some(stored)) => change.is_stored_as(stored),
        Commit::Conflict(None) => false,
    }
}

on_every_release!(the_postgres_store_keeps_the_contract);
async fn the_postgres_store_keeps_the_contract(release: PostgresRelease) {
    let server = Postgres::start_release(release, &[]);
    let exercise = async |(prepare, hot_path)| {
        let database = server.create_database();
        let store = open_with(&server, &database, |options| {
            options.prepare = prepare;
            options.hot_path = hot_path;
        })
        .await;
        contract::exercise(&PostgresUnderTest(store)).await;
        assert_eq!(out_of_order(&server, &database), "0|0", "prepare {prepare}, hot path {hot_path}");
    };
    join_all([(true, true), (false, true), (true, false)].map(exercise)).await;
}

/// Counts records that are half in the order of due records, and records that are due and that nothing will find: they are in no
/// order, and the lease scan has passed them. Every statement that writes `watch_*` or `reap_at` must keep both at zero.
fn out_of_order(server: &Postgres, database: &str) -> String {
    let sql = "select count(*) filter (where (r.watch_at is null) <> (r.watch_state is null) or r.watch_state <> r.state),
                      count(*) filter (where r.due_at is not null and r.watch_at is null
                        and r.reap_at - p.ahead_us <= coalesce(w.at, p.put_at)
                        and not exists (select from ibid_late l where l.id = r.id))
               from ibid_record r
               left join ibid_policy p on p.digest = r.policy
               left join ibid_walk w on w.policy = r.policy";
    server.sql(database, sql)
}

#[tokio::test]
async fn the_view_shows_names_and_readable_instants() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let begin = contract::put(&*store, &begin()).await;
    contract::put(&*store, &finish(&begin.record)).await;
    let name = TestRecord::fresh();
    let flags = Flags { dead_letter: true, ..Flags::default() };
    contract::put(&*store, &insert(&name, Draft { flags, ..draft(&name, State::Unknown) })).await;
    let view = "select state, dead_letter, tombstone, attempt, created_at > now() - interval '1 hour',
                       completed_at >= created_at, convert_from(body, 'UTF8'), nonce = birth, length(owner)
                from ibid_records order by state";
    assert_eq!(server.sql(&database, view), "completed|f|f|1|t|t|done|f|16\nunknown|t|f|1|t|||t|16");
    let key = format!("select key from ibid_records where id = '{}'", name.id);
    assert_eq!(server.sql(&database, &key), name.identity.key.as_str());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_stores_on_one_database_never_both_win() {
    let server = Postgres::shared();
    let database = server.create_database();
    // Settings of the database do not change what ibid does.
    server.sql(
        "postgres",
        &format!("alter database {database} set default_transaction_isolation = serializable"),
    );
    let stores = [open(&server, &database).await, open(&server, &database).await];
    let names: Arc<Vec<TestRecord>> = Arc::new((0..300).map(|_| TestRecord::fresh()).collect());
    let runs = stores.clone().map(|store| {
        let names = names.clone();
        tokio::spawn(async move {
            let mut won = 0;
            for few in names.chunks(30) {
                let begins = few.iter().map(|name| insert(name, draft(name, State::InProgress)));
                let fates = commit_all(&*store, begins.collect()).await;
                won += fates.values().filter(|fate| matches!(fate, Commit::Done(_))).count();
            }
            won
        })
    });
    let mut total = 0;
    for run in runs {
        total += run.await.expect("a racer ends");
    }
    assert_eq!(total, names.len(), "each name has one winner");
    for name in names.iter() {
        let [left, right] = &stores;
        let (left, right) = (load(&**left, name.id).await, load(&**right, name.id).await);
        assert_eq!(left.map(|stored| stored.record), right.map(|stored| stored.record), "both see the same");
    }
}
