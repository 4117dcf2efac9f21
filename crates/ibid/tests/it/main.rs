//! The library as its users see it; one binary, for linking dominates with many.

mod adapters;
mod engine;
mod http;
mod reference;
mod store_memory;
mod store_sqlite;
mod store_sqlite_run;
mod store_sqlite_shared;
