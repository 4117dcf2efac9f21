//! The identity of a request's sender: the tenant and, where a policy asks for it, the principal within the tenant. Both come
//! from authentication, which the application or the gateway has done before.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use ibid_core::scope::Tenant;

/// Finds the tenant of a request.
#[derive(Clone)]
pub struct TenantSource(Arc<TenantRule>);

type TenantRule = dyn Fn(&Parts) -> Result<Tenant, MissingIdentityError> + Send + Sync;

impl TenantSource {
    /// Gives every request the same tenant, for deployments that have only one.
    pub fn only() -> TenantSource {
        TenantSource::by(|_| Ok(Tenant::only()))
    }

    /// Takes the [`Tenant`] that your authentication put into the request's extensions. Put the layer inside authentication.
    pub fn from_extension() -> TenantSource {
        TenantSource::by(|head| head.extensions.get::<Tenant>().cloned().ok_or(MissingIdentityError))
    }

    /// Finds the tenant by your own rule. It must come from authentication, never from the body.
    pub fn by(
        rule: impl Fn(&Parts) -> Result<Tenant, MissingIdentityError> + Send + Sync + 'static,
    ) -> TenantSource {
        TenantSource(Arc::new(rule))
    }

    pub(crate) fn find(&self, head: &Parts) -> Result<Tenant, MissingIdentityError> {
        (self.0)(head)
    }
}

impl fmt::Debug for TenantSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantSource").finish_non_exhaustive()
    }
}

/// Finds the principal of a request within its tenant, for policies with `bind = "principal"`.
///
/// The principal must stay the same over a client's retries. A token that is refreshed between two of them would make the
/// second a new request.
#[derive(Clone)]
pub struct PrincipalSource(Arc<PrincipalFn>);

type PrincipalFn = dyn Fn(&Parts) -> Result<String, MissingIdentityError> + Send + Sync;

impl PrincipalSource {
    /// Finds no principal, so that policies which ask for one refuse the request.
    pub fn none() -> PrincipalSource {
        PrincipalSource::by(|_| Err(MissingIdentityError))
    }

    /// Finds the principal by your own rule.
    pub fn by(
        rule: impl Fn(&Parts) -> Result<String, MissingIdentityError> + Send + Sync + 'static,
    ) -> PrincipalSource {
        PrincipalSource(Arc::new(rule))
    }

    pub(crate) fn find(&self, head: &Parts) -> Result<String, MissingIdentityError> {
        (self.0)(head)
    }
}

impl fmt::Debug for PrincipalSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrincipalSource").finish_non_exhaustive()
    }
}

/// The request does not show which tenant or principal sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request does not show which tenant or principal sent it")]
pub struct MissingIdentityError;
