//! The rules of ibid, without I/O, clock or randomness.
//!
//! A client sends a request under an idempotency key, and ibid makes its retries safe. This crate decides how.
//! Everything here is a function of its arguments: the caller passes the time and every random number, so a test can be
//! any request on any day. Only [`store`], [`evidence`] and [`sql`] declare traits with I/O, which the `ibid` crate or
//! the application implements.
//!
//! # From a request to a decision
//!
//! 1. [`key_source`] finds the [`Key`](key::Key) in the request, and [`mod@path`] reads its path.
//! 2. [`scope`] derives the record id from tenant, operation and key.
//! 3. [`fingerprint`] digests the request, to tell a retry from a different request under the same key.
//! 4. [`machine::decide`] takes the stored [`Record`](record::Record), the event and the time. It returns a
//!    [`Verdict`](machine::Verdict): a decision and, if something has to be written, the [`Change`](change::Change)
//!    that the decision depends on.
//! 5. The store commits the change if the record is still at the version that was read. On a lost race the caller
//!    decides again with the newer record.
//!
//! # Map of modules
//!
//! | module | contents |
//! | --- | --- |
//! | [`machine`] | The state machine of records and effects. No other code changes a state. |
//! | [`record`], [`change`] | The stored record, and a set of writes to it that commit together. |
//! | [`policy`] | The rules of one route: lease, retention, and what happens after a lapse or an error. |
//! | [`effect`] | Outbox rows: external calls that have to be made, and their rules. |
//! | [`evidence`] | Reports from outside, such as webhooks, stored until they can settle an unknown outcome. |
//! | [`key`], [`key_source`], [`forward_key`] | Parses a key, finds it in a request, passes it on to an upstream. |
//! | [`scope`], [`mod@path`] | Tenant, operation and record id; which paths all servers read alike. |
//! | [`fingerprint`] | The keyed digest of a request, and `json-exact`, its canonical form of JSON. |
//! | [`response`] | The response stored for replay, and its encodings. |
//! | [`proof`] | What the header fields of a response prove about the outcome. |
//! | [`refusal`] | Every reason to refuse a request, with code, status and text. |
//! | [`repeatability`] | The rules of OASIS Repeatable Requests, and the age of requests. |
//! | [`operator_action`] | An operator's name and reason, for the history. |
//! | [`row`] | The columns of a record, written and read in one place for all stores. |
//! | [`store`], [`reap`], [`sql`] | The traits that stores and transactions implement. |
//! | [`time`], [`hex`] | Instants of the store's clock; hexadecimal digits. |

#![warn(missing_debug_implementations, clippy::exhaustive_enums)]

mod cbor_default;
pub mod change;
pub mod effect;
pub mod evidence;
pub mod fingerprint;
pub mod forward_key;
pub mod hex;
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
pub mod row;
pub mod scope;
pub mod sql;
pub mod store;
pub mod time;
