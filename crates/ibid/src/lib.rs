//! Safe retries for Rust services: idempotency keys with leases, fencing and an honest `unknown`.

pub mod store;
