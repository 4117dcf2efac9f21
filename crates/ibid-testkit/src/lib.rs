//! Test doubles and suites for ibid: the contract suite for your own store, stories of the state machine, a store that
//! fails on demand, an upstream that misbehaves, real proxies in front of it, a simulated card processor, and a client
//! that sends raw bytes.

pub mod client;
pub mod contract;
pub mod dynamodb;
pub mod faults;
pub mod hop;
pub mod mariadb;
pub mod postgres;
#[cfg(feature = "processor")]
pub mod processor;
pub mod program;
pub mod redis;
mod server_files;
mod server_process;
pub mod story;
pub mod tcp_hop;
#[cfg(feature = "tls")]
pub mod tls;
pub mod upstream;
pub mod upstream_h2;
