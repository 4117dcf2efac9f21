//! Test your own ibid store, and what stands on it: the store contract, a store that fails on demand, an upstream that
//! misbehaves, and a client that says raw bytes.

pub mod client;
pub mod faults;
pub mod upstream;
pub mod upstream_h2;
//! Test your own ibid store: the store contract.

pub mod contract;
