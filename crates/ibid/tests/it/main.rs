//! The library as its users see it; one binary, for linking dominates with many.

mod adapters;
mod engine;
mod http;
mod reference;
mod store_memory;
#[cfg(feature = "postgres")]
mod store_postgres;
mod store_sqlite;
mod store_sqlite_run;
mod store_sqlite_shared;
