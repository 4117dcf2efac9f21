//! Test your own ibid store, and what stands on it: the store contract, stories of the state machine, a store that
//! fails on demand, an upstream that misbehaves, real proxies before it, a simulated card processor, and a client that says
//! raw bytes.

pub mod client;
pub mod contract;
pub mod faults;
pub mod hop;
pub mod postgres;
#[cfg(feature = "processor")]
pub mod processor;
pub mod program;
pub mod story;
#[cfg(feature = "tls")]
pub mod tls;
pub mod upstream;
pub mod upstream_h2;
