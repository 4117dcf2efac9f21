//! One transaction with the caller's rows: an adapter per driver, each behind a feature of its own.
//!
//! Every adapter is a pair: a [`Database`] around the driver's pool and an [`OwnedTx`] that derefs to what the caller
//! runs statements on. `commit` of every one fails when PostgreSQL has aborted the transaction: the server itself
//! answers such a `COMMIT` with success and rolls back.

pub use ibid_core::sql::{Database, Fault, OwnedTx, SqlError, SqlTx};

#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;

#[cfg(feature = "sqlx-postgres")]
pub mod sqlx_postgres;

#[cfg(feature = "sqlx-sqlite")]
pub mod sqlx_sqlite;

#[cfg(feature = "diesel-async")]
pub mod diesel;

#[cfg(feature = "sea-orm")]
pub mod sea_orm;

#[cfg(feature = "sqlite")]
pub mod rusqlite;

pub mod isolated;

#[cfg(any(feature = "sqlx-postgres", feature = "sqlx-sqlite", feature = "sea-orm"))]
mod sqlx_failure;

#[cfg(any(feature = "sqlx-postgres", feature = "sqlx-sqlite", feature = "sea-orm", feature = "sqlite"))]
mod sqlite_failure;

pub use isolated::{Isolated, Isolation};
