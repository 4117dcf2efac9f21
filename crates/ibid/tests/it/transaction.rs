//! One transaction with the caller's rows, by every driver on a real database: key, business rows and outbox rows commit
//! together or not at all.

mod again;
mod all_inside;
mod counted;
mod durable;
mod failover;
mod guarded;
mod identity;
mod inside;
#[cfg(feature = "failpoints")]
mod killed;
mod locks;
mod sessions;
mod waiting;
pub(crate) mod world;

use crate::adapters::place::{
    DieselPools, Place, RusqliteConnections, SeaOrmPools, SqlxPostgresPools, SqlxSqlitePools,
    TokioPostgresPools,
};

/// Every rule in one database, under keys of its own: a server per rule and driver would cost minutes.
macro_rules! every_rule {
    ($($driver:ident: $adapter:ty, $place:expr;)*) => {
        $(mod $driver {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn an_attempt_ends_inside_the_callers_transaction() {
                let world = world::World::<$adapter>::new($place).await;
                inside::every_rule(&world).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_handler_behind_the_guard_ends_its_own_attempt() {
                let world = world::World::<$adapter>::under(guarded::policy(), $place).await;
                guarded::every_rule(world).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_key_is_reserved_and_completed_by_one_commit() {
                let world = world::World::<$adapter>::new($place).await;
                all_inside::every_rule(&world).await;
            }
        })*
    };
}

every_rule! {
    rusqlite: RusqliteConnections, Place::sqlite();
    sqlx_sqlite: SqlxSqlitePools, Place::sqlite();
    sea_orm_sqlite: SeaOrmPools, Place::sqlite();
    sqlx_postgres: SqlxPostgresPools, Place::postgres();
    tokio_postgres: TokioPostgresPools, Place::postgres();
    diesel: DieselPools, Place::postgres();
    sea_orm: SeaOrmPools, Place::postgres();
}

/// What a session is set to is PostgreSQL's.
macro_rules! every_commit_lasts {
    ($($driver:ident: $adapter:ty;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $driver() {
            durable::every_rule(&world::World::<$adapter>::new(Place::postgres()).await).await;
        })*
    };
}

mod what_is_acknowledged_lasts_although_the_session_would_not_wait_for_the_disk {
    use super::*;

    every_commit_lasts! {
        sqlx_postgres: SqlxPostgresPools;
        tokio_postgres: TokioPostgresPools;
        diesel: DieselPools;
        sea_orm: SeaOrmPools;
    }
}
