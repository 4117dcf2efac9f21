//! Statements on the connections of drivers, for the stores and the adapters of callers' transactions. It must know neither.

#[cfg(any(feature = "tokio-postgres", feature = "postgres"))]
pub(crate) mod pg_client;

#[cfg(feature = "sqlite")]
pub(crate) mod rusqlite_client;

#[cfg(any(
    feature = "sqlx-postgres",
    feature = "sqlx-sqlite",
    feature = "sqlx-mysql",
    feature = "sea-orm",
    feature = "sqlite"
))]
pub(crate) mod sqlite_error;
