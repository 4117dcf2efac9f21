//! One transaction for ibid's rows and yours: the response, your rows and the enqueued effects commit together or not at all.
//!
//! There are two ways to start it:
//!
//! - [`Attempt::join_tx`](crate::Attempt::join_tx): the key is already reserved. Your transaction carries your rows and the
//!   response.
//! - [`Ibid::begin_inside`](crate::Ibid::begin_inside): the reservation is the first statement of the transaction, so there
//!   is one commit in all.
//!
//! Each driver has an adapter behind a separate feature. An adapter is a pair: a [`Database`] around the driver's pool, and
//! an [`OwnedTx`] that derefs to the type you run statements on. The `commit` of every adapter fails if the server has aborted
//! the transaction: on such a `COMMIT` PostgreSQL rolls back and reports success, and after a deadlock MySQL has rolled back
//! already and commits what came later.

pub use ibid_core::sql::{Database, OwnedTx, SqlError, SqlFault, SqlTx};

pub(crate) mod attempt_tx;

pub(crate) mod reserve_tx;

pub(crate) mod reserve_queue;

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

#[cfg(feature = "mysql-async")]
pub mod mysql_async;

#[cfg(feature = "sqlx-mysql")]
pub mod sqlx_mysql;

#[cfg(feature = "diesel-async")]
pub mod diesel;

#[cfg(feature = "sea-orm")]
pub mod sea_orm;

#[cfg(feature = "sqlite")]
pub mod rusqlite;

pub mod isolation;

#[cfg(feature = "mysql-async")]
mod mysql_client;

mod mysql_limits;

#[cfg(any(feature = "mysql-async", feature = "sqlx-mysql"))]
mod mysql_tx;

#[cfg(any(feature = "sqlx-postgres", feature = "sqlx-sqlite", feature = "sqlx-mysql", feature = "sea-orm"))]
mod sqlx_error;

pub use isolation::{IsolatedDatabase, Isolation};
#[cfg(any(feature = "mysql-async", feature = "sqlx-mysql"))]
pub use mysql_tx::MysqlTx;
