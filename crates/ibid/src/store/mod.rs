//! The stores: memory, SQLite and PostgreSQL. Each passes `ibid_testkit::contract::exercise`.
//!
//! A store compares versions and instants and writes the change that it gets. Only `ibid_core::machine` decides what a state
//! means.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod checkup;
pub mod clock;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod read_only_query;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod run_times;
#[cfg(feature = "sqlite")]
pub mod sqlite;
