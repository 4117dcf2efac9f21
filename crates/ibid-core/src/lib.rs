//! The rules of ibid without I/O, clock or randomness: which [`key::Key`] a request names, and by which
//! [`fingerprint::Fingerprint`] a retry is told from another request under the same key. Everything here is
//! a function of its arguments, so that a test can be any request on any day.

mod cbor_default;
pub mod change;
pub mod effect;
pub mod evidence;
pub mod fingerprint;
pub mod forward_key;
pub mod key;
pub mod key_source;
pub mod machine;
pub mod operator_action;
pub mod path;
pub mod policy;
pub mod proof;
pub mod reap;
pub mod record;
pub mod refusal;
pub mod repeatability;
pub mod response;
pub mod scope;
pub mod sql;
pub mod store;
pub mod time;
