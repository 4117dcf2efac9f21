//! Black-box tests of the application: real processes, real sockets, a real PostgreSQL.

mod api;
mod armed;
mod chaos;
mod client;
mod clients;
mod crash;
mod db;
mod failpoints;
mod harness;
mod hooked;
mod ledger;
mod payments;
mod promise;
mod rides;
mod world;
