//! One transaction with the caller's rows, by every driver on a real database: key, business rows and outbox rows commit
//! together or not at all.

mod attempt_tx;
mod cost;
#[cfg(feature = "failpoints")]
mod crash;
mod duplicates;
mod durability;
mod failover;
mod gap_locks;
pub(crate) mod harness;
mod http_layer;
mod identity;
mod locks;
mod reserve_tx;
mod serialization;
mod sessions;
mod transact;

use crate::adapters::databases::{
    DieselPools, MysqlAsyncPools, RusqliteConnections, SeaOrmPools, SqlxMysqlPools, SqlxPostgresPools,
    SqlxSqlitePools, TestDatabase, TokioPostgresPools,
};

/// Runs every rule in one database, under separate keys: a server per rule and driver would cost minutes.
macro_rules! every_rule {
    ($($driver:ident: $adapter:ty, $test_db:expr;)*) => {
        $(mod $driver {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn an_attempt_ends_inside_the_callers_transaction() {
                let world = harness::NodeOnDatabase::<$adapter>::new($test_db).await;
                attempt_tx::every_rule(&world).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_handler_behind_the_guard_ends_its_own_attempt() {
                let world = harness::NodeOnDatabase::<$adapter>::under(http_layer::policy(), $test_db).await;
                http_layer::every_rule(world).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_key_is_reserved_and_completed_by_one_commit() {
                let world = harness::NodeOnDatabase::<$adapter>::new($test_db).await;
                reserve_tx::every_rule(&world).await;
            }
        })*
    };
}

every_rule! {
    rusqlite: RusqliteConnections, TestDatabase::sqlite();
    sqlx_sqlite: SqlxSqlitePools, TestDatabase::sqlite();
    sea_orm_sqlite: SeaOrmPools, TestDatabase::sqlite();
    sqlx_postgres: SqlxPostgresPools, TestDatabase::postgres();
    tokio_postgres: TokioPostgresPools, TestDatabase::postgres();
    diesel: DieselPools, TestDatabase::postgres();
    sea_orm: SeaOrmPools, TestDatabase::postgres();
    mysql_async: MysqlAsyncPools, TestDatabase::mariadb();
    sqlx_mysql: SqlxMysqlPools, TestDatabase::mariadb();
}

/// PostgreSQL only: SQLite and MySQL have no such session setting.
macro_rules! every_commit_lasts {
    ($($driver:ident: $adapter:ty;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $driver() {
            // On a separate server, because it creates a role.
            durability::every_rule(&harness::NodeOnDatabase::<$adapter>::new(TestDatabase::own_postgres()).await).await;
        })*
    };
}

mod acknowledged_commits_last_despite_session_settings {
    use super::*;

    every_commit_lasts! {
        sqlx_postgres: SqlxPostgresPools;
        tokio_postgres: TokioPostgresPools;
        diesel: DieselPools;
        sea_orm: SeaOrmPools;
    }
}
