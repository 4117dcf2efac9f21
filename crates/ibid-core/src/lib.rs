//! The rules of ibid, and nothing else: no I/O, no clock, no randomness.
#![warn(missing_docs)]

pub mod change;
pub mod fingerprint;
pub mod key;
pub mod machine;
pub mod policy;
pub mod record;
pub mod refusal;
pub mod response;
pub mod scope;
pub mod store;
pub mod time;
