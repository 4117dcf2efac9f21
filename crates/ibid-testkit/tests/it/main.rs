//! The testkit's own promises, in one binary, because linking dominates with many.

mod mariadb;
mod others_server;
mod postgres;
#[cfg(feature = "processor")]
mod processor;
