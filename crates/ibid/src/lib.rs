//! Safe retries for Rust services: idempotency keys with leases, fencing and an honest `unknown`.

pub mod attempt;
#[cfg(feature = "axum")]
pub mod axum;
pub mod engine;
#[cfg(feature = "http")]
pub mod http;
pub mod store;
pub mod telemetry;
pub mod upkeep;

pub use attempt::Attempt;
pub use engine::{Ibid, Settings};
pub use ibid_core as core;
