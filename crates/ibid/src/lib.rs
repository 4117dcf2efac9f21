//! Safe retries for Rust services: idempotency keys with leases, fencing and an honest `unknown`.
//!
//! A client that gets no response retries. [`http::IdempotencyLayer`] around a tower service reserves the client's
//! `Idempotency-Key` durably before any work, lets one [`Attempt`] run, stores its response, and replays that response to
//! every retry. Without HTTP, use the engine directly:
//!
//! ```
//! # use std::sync::Arc;
//! # use ibid::{Begin, Ibid, Identity, Key, Operation, Outcome, Policy, RequestView, Response, Settings, Tenant};
//! # use ibid::store::{clock::Clock, memory::MemoryStore};
//! # struct Body;
//! # impl RequestView for Body {
//! #     fn method(&self) -> &str { "POST" }
//! #     fn path(&self) -> &str { "/payments" }
//! #     fn query(&self) -> Option<&str> { None }
//! #     fn header_lines(&self, _: &str, _: &mut dyn FnMut(&[u8])) {}
//! #     fn body(&self) -> &[u8] { b"{}" }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = Arc::new(MemoryStore::new(Clock::system()));
//! # let identity = Identity {
//! #     tenant: Tenant::only(),
//! #     operation: Operation { method: "POST".into(), path: "/payments".into() },
//! #     key: Key::stored("order-7")?,
//! # };
//! let ibid = Ibid::start(store, Settings::default()).await?;
//! let ask = ibid.ask(identity, Arc::new(Policy::default()), Arc::new(Body));
//!
//! match ibid.begin(ask.clone()).await? {
//!     Begin::Run(mut attempt) => {
//!         attempt.ensure_lease().await?; // before the first outside byte
//!         let response = Response::plain(201, "text/plain", "paid".to_owned());
//!         assert!(matches!(attempt.finish(response).await, Outcome::Completed(_)));
//!     }
//!     other => panic!("the key was used before: {other:?}"),
//! }
//! assert!(matches!(ibid.begin(ask).await?, Begin::Skip(Outcome::Completed(stored)) if stored.response.status == 201));
//! # Ok(()) }
//! ```
//!
//! The path of a request through the code, in reading order: `http::layer` → `http::intake` → [`engine`] →
//! `ibid_core::machine` → `http::run` → `http::capture` → [`attempt`] → `http::respond`.

#![warn(missing_debug_implementations, clippy::exhaustive_enums)]

#[cfg(feature = "http")]
pub mod http;

#[cfg(feature = "axum")]
pub mod axum;

mod ibid;

pub mod engine;

pub mod evidence;

pub mod identity;

pub mod attempt;

pub mod outcome;

pub mod outbox;

pub mod operator;

pub mod upkeep;

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub mod copy;

pub mod store;

pub mod front;

pub mod transaction;

pub mod phase;

pub mod policy;

pub mod prelude;

pub mod telemetry;

mod driver;

mod record_sql;

mod backoff;

mod random;

mod slot_shares;

#[cfg(feature = "http")]
mod trace;

#[cfg(feature = "redis")]
mod redis_target;

mod failpoint;

pub use attempt::Attempt;
pub use engine::Settings;
pub use ibid::Ibid;
pub use ibid_core::fingerprint::{RequestView, Secret, SecretError, SecretId};
pub use ibid_core::key::{Key, KeyError};
pub use ibid_core::machine::BeginRequest;
pub use ibid_core::policy::Policy;
pub use ibid_core::proof::Proof;
pub use ibid_core::record::{ErrorCode, Record, RecoveryPoint, State};
pub use ibid_core::response::Response;
pub use ibid_core::scope::{Identity, Operation, RecordId, Tenant, TenantError};
pub use ibid_core::store::{BoxFuture, Store, StoreError};
pub use ibid_core::time::Timestamp;
pub use outcome::{Begin, Outcome};

/// Compiles the examples of the guides with the library's own.
#[cfg(all(doctest, feature = "axum", feature = "sqlite"))]
mod pages {
    #[doc = include_str!("../../../docs/guides/axum.md")]
    struct AxumGuide;
    #[doc = include_str!("../../../docs/guides/async.md")]
    struct AsyncGuide;
    #[doc = include_str!("../../../docs/guides/webhooks.md")]
    struct WebhooksGuide;
    #[doc = include_str!("../../../docs/guides/reconcile.md")]
    struct ReconcileGuide;
    #[doc = include_str!("../../../docs/guides/test-your-handler.md")]
    struct TestGuide;
}

/// Compiles the examples of the guides that need a database driver.
#[cfg(all(
    doctest,
    feature = "axum",
    feature = "sqlite",
    feature = "sqlx-sqlite",
    feature = "sqlx-postgres"
))]
mod pages_with_sqlx {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guides/one-transaction.md")]
    struct OneTransactionGuide;
    #[doc = include_str!("../../../docs/guides/recovery-points.md")]
    struct RecoveryPointsGuide;
    #[doc = include_str!("../../../docs/guides/outbox.md")]
    struct OutboxGuide;
}
