//! The programs from outside: real processes, real sockets, a real PostgreSQL.

mod api;
mod chaos;
mod client;
mod crash;
mod db;
mod harness;
mod payments;
mod provider;
mod provider_webhook;
mod rides;
mod world;
