//! Every driver's transactions keep the same promises: one suite, run by each adapter on a real database.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use ibid::transaction::{Database, SqlError, SqlFault, SqlTx, TxError};
use ibid_core::sql::{Dialect, Param, SqlRow, Statement, Type};

mod borrowed_tx;
pub(crate) mod databases;
mod faults;
mod transaction_end;
mod values;

use databases::TestDatabase;

/// One driver under test.
pub(crate) trait Adapter: 'static {
    type Db: Database;

    /// Opens a pool of `connections` that waits at most `patience` for a connection or a lock.
    async fn open(test_db: &TestDatabase, connections: usize, patience: Duration) -> Self::Db;

    /// Runs a statement of the caller, through the driver itself.
    async fn by_caller(tx: &mut <Self::Db as Database>::Tx, sql: &'static str) -> Result<(), TxError>;
}

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENT: Duration = Duration::from_secs(30);

/// One test for each driver: a process and a server for each rule would cost minutes. Each rule has its own database.
macro_rules! keeps_every_rule {
    ($adapter:ty, $test_db:expr, [$($group:ident::$rule:ident),* $(,)?]) => {
        #[tokio::test]
        async fn keeps_every_rule() {
            let broken = super::keeps_the_rules_of_every_database::<$adapter>(&$test_db).await;
            let own: &[Option<&str>] =
                &[$(super::broken(stringify!($rule), super::$group::$rule::<$adapter>($test_db())).await),*];
            let broken: Vec<&str> = broken.into_iter().chain(own.iter().copied().flatten()).collect();
            assert!(broken.is_empty(), "these rules are broken: {broken:?}");
        }
    };
}

macro_rules! on_sqlite {
    ($adapter:ty) => {
        keeps_every_rule!($adapter, super::TestDatabase::sqlite, []);
    };
}

macro_rules! on_postgres {
    ($adapter:ty) => {
        keeps_every_rule!(
            $adapter,
            super::TestDatabase::postgres,
            [
                transaction_end::what_the_server_aborted_is_not_committed,
                transaction_end::a_begin_that_was_given_up_leaves_no_transaction_open,
                faults::a_row_that_moved_means_again,
                faults::a_commit_that_would_not_serialize_means_again,
                faults::a_deadlock_means_again,
                faults::a_deadlock_of_the_callers_own_statements_means_again,
                faults::a_lock_waited_for_in_vain_is_told,
                faults::a_terminated_connection_is_lost_and_the_pool_is_not,
            ]
        );

        #[tokio::test]
        async fn a_server_that_is_gone_is_lost() {
            super::faults::a_server_that_is_gone_is_lost::<$adapter>(super::TestDatabase::own_postgres())
                .await;
        }
    };
}

macro_rules! on_mysql {
    ($adapter:ty) => {
        keeps_every_rule!(
            $adapter,
            super::TestDatabase::mariadb,
            [
                transaction_end::what_the_server_ended_is_not_committed,
                transaction_end::what_is_half_written_is_not_committed,
                faults::a_row_that_changed_since_the_snapshot_means_again,
                faults::a_table_rebuilt_since_the_snapshot_means_again,
                faults::a_deadlock_means_again,
                faults::a_deadlock_of_the_callers_own_statements_means_again,
                faults::a_lock_waited_for_in_vain_is_told,
                faults::a_terminated_connection_is_lost_and_the_pool_is_not,
                faults::a_transaction_runs_at_the_chosen_level,
            ]
        );

        #[tokio::test]
        async fn a_server_that_is_gone_is_lost() {
            super::faults::a_server_that_is_gone_is_lost::<$adapter>(super::TestDatabase::own_mariadb())
                .await;
        }
    };
}

/// Returns the names of the broken rules, of those that apply to every database.
async fn keeps_the_rules_of_every_database<A: Adapter>(
    test_db: &impl Fn() -> TestDatabase,
) -> Vec<&'static str> {
    macro_rules! all {
        ($($group:ident::$rule:ident),* $(,)?) => {
            [$(broken(stringify!($rule), $group::$rule::<A>(test_db())).await),*]
        };
    }
    let broken = all![
        values::what_is_bound_comes_back,
        values::a_bound_value_needs_no_column_to_have_its_type,
        values::rows_are_written_and_returned,
        values::a_row_that_is_not_what_was_promised_is_wrong,
        transaction_end::a_commit_shows_elsewhere,
        transaction_end::nothing_is_left_of_what_was_not_committed,
        transaction_end::an_abandoned_transaction_gives_the_pool_back,
        transaction_end::a_begin_that_was_given_up_leaves_the_pool_usable,
        transaction_end::the_callers_own_statements_share_its_fate,
        faults::a_unique_violation_is_wrong,
        faults::a_callers_own_error_keeps_its_meaning,
        faults::an_exhausted_pool_or_a_held_lock_is_told,
    ];
    broken.into_iter().flatten().collect()
}

/// Runs one rule and returns its name if it is broken. The reason is then on stderr.
async fn broken(name: &'static str, rule: impl Future<Output = ()>) -> Option<&'static str> {
    AssertUnwindSafe(rule).catch_unwind().await.err().map(|_| name)
}

mod tokio_postgres {
    on_postgres!(super::databases::TokioPostgresPools);
}

mod sqlx_postgres {
    on_postgres!(super::databases::SqlxPostgresPools);
}

mod mysql_async {
    on_mysql!(super::databases::MysqlAsyncPools);
}

mod sqlx_mysql {
    on_mysql!(super::databases::SqlxMysqlPools);
}

mod diesel {
    on_postgres!(super::databases::DieselPools);
}

mod sea_orm {
    on_postgres!(super::databases::SeaOrmPools);
}

mod sea_orm_sqlite {
    on_sqlite!(super::databases::SeaOrmPools);
}

mod sqlx_sqlite {
    on_sqlite!(super::databases::SqlxSqlitePools);
}

mod rusqlite {
    on_sqlite!(super::databases::RusqliteConnections);
}

/// Builds a statement in this dialect. It is never freed; a test has few.
fn sql(tx: &impl SqlTx, text: &str, columns: &'static [Type]) -> &'static Statement {
    let text = match tx.dialect() {
        Dialect::Postgres => text.to_owned(),
        Dialect::Sqlite => text.replace('$', "?").replace("bytea", "blob").replace("int8", "integer"),
        Dialect::Mysql => {
            // `key` is a reserved word.
            let text = text.replace("(key", "(`key`").replace("key =", "`key` =").replace("r.`key`", "r.key");
            let text = text.replace("key in", "`key` in").replace("uuid", "binary(16)");
            text.replace('$', "?").replace("bytea", "longblob").replace("int8", "bigint")
        }
    };
    Box::leak(Box::new(Statement { text: text.leak(), columns }))
}

pub(crate) async fn execute(tx: &mut impl SqlTx, text: &str, params: &[Param<'_>]) -> Result<(), SqlError> {
    let statement = sql(tx, text, &[]);
    tx.execute(statement, params).await
}

pub(crate) async fn query(
    tx: &mut impl SqlTx,
    text: &str,
    columns: &'static [Type],
    params: &[Param<'_>],
) -> Result<Vec<SqlRow>, SqlError> {
    let statement = sql(tx, text, columns);
    tx.query(statement, params).await
}

pub(crate) async fn number(tx: &mut impl SqlTx, text: &str) -> i64 {
    let mut rows = query(tx, text, &[Type::I64], &[]).await.unwrap();
    rows.remove(0).i64().unwrap()
}

/// Creates a table with the rows 1 and 2, and returns the pool.
async fn with_table<A: Adapter>(test_db: &TestDatabase, connections: usize) -> A::Db {
    use ibid::transaction::OwnedTx;
    let pool = A::open(test_db, connections, PATIENT).await;
    change_schema(&pool, "create table thing (id int8 primary key, n int8 not null)").await;
    let mut tx = pool.begin().await.unwrap();
    execute(&mut tx, "insert into thing (id, n) values (1, 0), (2, 0)", &[]).await.unwrap();
    tx.commit().await.unwrap();
    pool
}

/// Changes the schema. On MySQL such a statement ends its transaction by itself.
pub(crate) async fn change_schema(pool: &impl Database, table: &str) {
    use ibid::transaction::OwnedTx;
    let mut tx = pool.begin().await.unwrap();
    execute(&mut tx, table, &[]).await.unwrap();
    match tx.dialect() {
        Dialect::Mysql => tx.rollback().await.unwrap(),
        Dialect::Postgres | Dialect::Sqlite => tx.commit().await.unwrap(),
    }
}

fn fault_of<T>(result: Result<T, SqlError>) -> Option<SqlFault> {
    result.err().map(|error| {
        assert!(std::error::Error::source(&error).is_some(), "the driver's error is kept");
        error.fault()
    })
}
