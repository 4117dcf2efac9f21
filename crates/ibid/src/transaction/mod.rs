//! One transaction with the caller's rows: key, business rows and outbox rows commit together or not at all.
//!
//! Two ways in. [`Attempt::inside`](crate::Attempt::inside): the key is reserved already, and the caller's transaction
//! carries the work and the completion. [`Ibid::begin_inside`](crate::Ibid::begin_inside): the reservation is the
//! transaction's first statement, and there is one commit in all.
//!
//! There is an adapter per driver, each behind a feature of its own. Every adapter is a pair: a [`Database`] around the driver's pool and an [`OwnedTx`] that derefs to what the caller
//! runs statements on. `commit` of every one fails when PostgreSQL has aborted the transaction: the server itself
//! answers such a `COMMIT` with success and rolls back.

pub use ibid_core::sql::{Database, OwnedTx, SqlError, SqlFault, SqlTx};

pub(crate) mod attempt_tx;

pub(crate) mod reserve_tx;

pub(crate) mod reserve_queue;

pub(crate) mod statements;

mod driver_tx;

pub(crate) mod transact;

pub use attempt_tx::{AttemptTx, TxError};
pub use driver_tx::DriverTx;
pub use reserve_tx::BeginInside;
pub use transact::{Completion, TxHandle, TxResponse, TxResult};

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

#[cfg(any(feature = "tokio-postgres", feature = "postgres"))]
pub(crate) mod pg_client;

#[cfg(any(feature = "sqlx-postgres", feature = "sqlx-sqlite", feature = "sea-orm"))]
mod sqlx_error;

#[cfg(any(feature = "sqlx-postgres", feature = "sqlx-sqlite", feature = "sea-orm", feature = "sqlite"))]
mod sqlite_error;

pub use isolated::{Isolated, Isolation};
