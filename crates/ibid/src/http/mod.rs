//! The tower layer: reserves the key of every guarded request before it runs, and gives every retry the stored response.
//!
//! ```
//! use std::convert::Infallible;
//! use std::sync::Arc;
//!
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use ibid::http::{IdempotencyLayer, TenantSource};
//! use ibid::store::{clock::Clock, memory::MemoryStore};
//! use ibid::{Ibid, Settings};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! async fn pay(_: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
//!     Ok(Response::builder().status(201).body(Full::from("paid")).expect("a response"))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Use a durable store: this one forgets its keys with the process.
//! let store = Arc::new(MemoryStore::new(Clock::system()));
//! let ibid = Ibid::start(store, Settings::default()).await?;
//! let service = IdempotencyLayer::new(ibid, TenantSource::only()).layer(service_fn(pay));
//!
//! let request = || {
//!     let head = Request::post("/payments").header("idempotency-key", "order-7");
//!     head.body(Full::from(r#"{"amount":7}"#)).expect("a request")
//! };
//! let first = service.clone().oneshot(request()).await?;
//! assert_eq!(first.status(), 201);
//! let retry = service.oneshot(request()).await?;
//! assert_eq!(retry.status(), 201);
//! assert_eq!(retry.headers()["idempotent-replayed"], "true");
//! # Ok(()) }
//! ```
//!
//! # Order of layers
//!
//! Put [`IdempotencyLayer`]
//!
//! - inside authentication: the tenant scopes the key, and [`TenantSource`] takes it from what authentication has found;
//! - inside compression: every retry gets the stored bytes, whichever codings it accepts;
//! - outside everything that belongs to the work, such as a time-out for the handler. A time-out outside the layer only stops
//!   the wait of the client: the request keeps running, and its retry gets the result.
//!
//! A service in front of it that responds by itself, such as a rate limiter, reserves nothing.
//!
//! # What is replayed
//!
//! A retry gets status, body, trailers and the header lines of the first response, with `Idempotent-Replayed: true`. It does not
//! get lines that belong to one connection, one moment or one client, such as `Date`, `Retry-After` or `Set-Cookie`
//! ([`may_be_repeated`](ibid_core::response::may_be_repeated)), nor lines by which a cache would store the replay. A response
//! that is larger than the policy's `max_response_body`, a stream or an upgrade reaches the first client and is not stored; a
//! retry gets 410. The policy decides which statuses are stored, which release the key, and which leave the outcome unknown.
//!
//! # The path of a request
//!
//! `layer` (is it guarded?) → `intake` (tenant, key, body, fingerprint, or a refusal) → the engine's `begin` → `run` (the
//! handler, detached from its client) → `capture` (what may be stored) → the engine's `finish` → `respond`.

mod admission;
mod body;
mod capture;
mod cors;
mod counters;
mod guarded_request;
mod handler_attempt;
pub mod hooks;
mod identity;
mod intake;
mod layer;
mod method_override;
mod original_uri;
mod pages;
mod prefer;
mod previous;
mod proof;
mod render;
mod repeatability;
mod respond;
mod resume;
mod routes;
mod routes_builder;
mod run;
mod stored_request;
mod transact;
mod without_key;

pub use admission::{Admission, AdmissionPermit, BodyBytes, OverCapacityError};
pub use body::ReplyBody;
pub use capture::read_lookup;
pub use cors::{Cors, CorsError};
pub use handler_attempt::{HeldAttempt, ReserveError, UnreservedRequest};
pub use identity::{MissingIdentityError, PrincipalSource, TenantSource};
pub use layer::{IdempotencyLayer, IdempotencyService};
pub use render::render_refusal;
pub use routes::{ReservedBy, Route, Routes, RoutesError, Rule, Ruling};
pub use routes_builder::RoutesBuilder;
pub use without_key::WithoutKey;

pub use crate::trace::TraceContext;

use std::sync::Arc;

use ibid_core::key::Key;
use ibid_core::policy::Policy;
use ibid_core::record::RecoveryPoint;
use ibid_core::scope::Tenant;

use original_uri::{original_uri, set_original_uri};

/// Facts about a guarded request, for its handler; found in the request's extensions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GuardedRequest {
    /// The tenant that sent the request.
    pub tenant: Tenant,
    /// The key of the request.
    pub key: Key,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// The last phase that an earlier attempt committed; zero if none.
    pub after: RecoveryPoint,
    /// The policy that the request runs under.
    pub policy: Arc<Policy>,
}

impl GuardedRequest {
    /// Creates the facts about a first attempt, to test a handler without the layer.
    pub fn new(tenant: Tenant, key: Key, policy: Arc<Policy>) -> GuardedRequest {
        GuardedRequest { tenant, key, attempt: 1, after: 0, policy }
    }

    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut GuardedRequest)) -> GuardedRequest {
        change(&mut self);
        self
    }
}

/// A handler's statement about the work, for responses whose status does not tell. The handler puts it into the response's
/// extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "who acts on a hint has to handle every one")]
pub enum ExecutionHint {
    /// The work was done: this response is final, whatever its status.
    Executed,
    /// Nothing was executed, and that is certain. The key is released.
    NotExecuted,
    /// The work may have been done; the response is lost.
    Uncertain,
}
