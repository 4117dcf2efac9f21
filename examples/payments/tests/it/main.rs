//! Black-box tests of the application: real processes, real sockets, a real PostgreSQL.

mod api;
mod armed_node;
mod chaos;
mod client;
mod clients;
mod crash;
mod db;
mod failpoints;
mod fixture;
mod harness;
mod ledger;
mod payments;
mod processor_webhooks;
mod promise;
mod rides;
