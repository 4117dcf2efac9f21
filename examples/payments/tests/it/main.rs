//! The programs from outside: real processes, real sockets, a real PostgreSQL.

mod api;
mod client;
mod db;
mod harness;
mod postgres;
mod provider;
mod provider_webhook;
