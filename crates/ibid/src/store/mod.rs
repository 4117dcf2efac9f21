//! Where Records live. Each module here is one store; all pass `ibid_testkit::contract::exercise`.
//!
//! A store compares Versions and instants and writes what it is given. What a State means is decided in
//! `ibid_core::machine` and nowhere else.

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
