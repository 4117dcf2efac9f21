//! The tower layer: every guarded request is reserved before it runs and answered from its record after.
//!
//! Stops of a request: `layer` (is it guarded?) → `intake` (tenant, key, body, fingerprint, or a Refusal) → the
//! engine → the handler → `capture` (what may be kept) → the engine → `reply`.

mod admission;
mod body;
mod capture;
mod cors;
mod held;
pub mod hooks;
mod intake;
mod layer;
mod method_override;
mod otel;
mod outcome;
mod prefer;
mod previous;
mod repeatability;
mod reply;
mod resume;
mod routes;
mod status;
mod tenants;
mod trace;
mod without_key;

pub use admission::{Admission, Admitted, BodyBytes, Crowded};
pub use body::ReplyBody;
pub use capture::executed;
pub use cors::{Cors, CorsError};
pub use held::{Held, NotRun, Unbegun};
pub use layer::{Guard, GuardLayer};
pub use reply::refused;
pub use routes::{Begins, Route, Routes, RoutesError, Rule, Ruling};
pub use tenants::{NoTenant, Principals, Tenants};
pub use trace::TraceContext;
#[cfg(feature = "opentelemetry")]
pub(crate) use trace::continue_trace;
pub use without_key::WithoutKey;

use std::sync::Arc;

use ibid_core::key::Key;
use ibid_core::policy::Policy;
use ibid_core::record::RecoveryPoint;
use ibid_core::scope::Tenant;

/// What a handler under a [`Guard`] may know of its run; found in the request's extensions.
#[derive(Clone, Debug)]
pub struct Guarded {
    /// Whose request it is.
    pub tenant: Tenant,
    /// Its key.
    pub key: Key,
    /// Which run of this request it is, from 1.
    pub attempt: u32,
    /// The last Phase that an earlier run committed; zero if none.
    pub after: RecoveryPoint,
    /// The rules that it runs under.
    pub policy: Arc<Policy>,
}

/// What an answer says about the work when its status does not: put it into a response's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The work was done: this response is final, whatever its status.
    Executed,
    /// Proven: nothing was executed. The key is left free.
    NotExecuted,
    /// The work may have been done; the answer is lost.
    Uncertain,
}

/// The address as the client sent it.
#[cfg(feature = "axum")]
use crate::axum::{sent, was_sent};

#[cfg(not(feature = "axum"))]
fn sent<'a>(_: &'a http::Extensions, uri: &'a http::Uri) -> &'a http::Uri {
    uri
}

#[cfg(not(feature = "axum"))]
fn was_sent(_: &mut http::Extensions, _: http::Uri) {}
