//! The stores: memory, SQLite, PostgreSQL, MySQL and Redis. Each passes `ibid_testkit::contract::exercise`.
//!
//! A store compares versions and instants and writes the change that it gets. Only `ibid_core::machine` decides what a state
//! means.

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis", feature = "sqlite"))]
#[doc(hidden)]
pub mod checkup;
pub mod clock;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
#[cfg_attr(
    not(any(feature = "mysql", feature = "postgres")),
    expect(dead_code, reason = "Redis locks no rows, so nothing goes by the plain path")
)]
mod commit_queue;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod policy_cache;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
#[doc(hidden)]
pub mod read_only_query;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod record_pages;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis", feature = "sqlite"))]
#[doc(hidden)]
pub mod run_times;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod schema_steps;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis", feature = "sqlite"))]
mod send_deadline;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod server_pools;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use schema_steps::Migration;
