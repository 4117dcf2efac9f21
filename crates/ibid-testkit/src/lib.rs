//! Test your own ibid store, and what stands on it.

pub mod faults;
//! What tests of ibid stand on: an upstream that misbehaves on demand and a client that says raw bytes.

pub mod client;
pub mod upstream;
pub mod upstream_h2;
