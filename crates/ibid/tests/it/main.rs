//! The integration tests of `ibid`, one binary: linking dominates with many.

mod http;
//! The library as its users see it.

mod store_memory;
#[cfg(feature = "sqlite")]
mod store_sqlite;
