//! The library as its users see it, in one binary, because linking dominates with many.

/// Tests that need all features at once: one build instead of five.
#[cfg(all(
    feature = "tokio-postgres",
    feature = "sqlx-postgres",
    feature = "sqlx-sqlite",
    feature = "mysql-async",
    feature = "sqlx-mysql",
    feature = "diesel-async",
    feature = "sea-orm"
))]
mod adapters;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod copy;
mod deliverer;
mod election;
mod engine;
#[cfg(feature = "redis")]
mod front;
mod hooks;
mod http;
mod http_async;
mod http_key;
mod identity;
mod lossy_database;
mod operator;
mod outbox;
#[cfg(all(
    feature = "postgres",
    feature = "mysql",
    feature = "tokio-postgres",
    feature = "sqlx-postgres",
    feature = "sqlx-sqlite",
    feature = "mysql-async",
    feature = "sqlx-mysql",
    feature = "diesel-async",
    feature = "sea-orm"
))]
mod phases;
mod read_only_query;
mod reaper;
mod reconcile;
mod reference;
mod request_fixture;
mod schema_page;
mod store_memory;
#[cfg(feature = "postgres")]
mod store_postgres;
mod store_sqlite;
mod store_sqlite_order;
mod store_sqlite_plans;
mod store_sqlite_run;
mod store_sqlite_shared;
mod sweeper;
#[cfg(all(
    feature = "postgres",
    feature = "mysql",
    feature = "tokio-postgres",
    feature = "sqlx-postgres",
    feature = "sqlx-sqlite",
    feature = "mysql-async",
    feature = "sqlx-mysql",
    feature = "diesel-async",
    feature = "sea-orm"
))]
mod transaction;
mod unreadable_evidence;
