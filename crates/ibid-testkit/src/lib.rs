//! Test your own ibid store, and what stands on it.

pub mod faults;
