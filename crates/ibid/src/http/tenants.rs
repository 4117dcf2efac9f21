//! Whose request it is: the tenant, and where a policy asks for it the principal within the tenant. Both come from
//! authentication, which the application or the gateway has done before.

use std::sync::Arc;

use http::request::Parts;
use ibid_core::scope::Tenant;

/// Finds the tenant of a request.
#[derive(Clone)]
pub struct Tenants(Arc<Rule>);

type Rule = dyn Fn(&Parts) -> Result<Tenant, NoTenant> + Send + Sync;

/// Finds the principal of a request, for policies with `bind = "principal"`: who within the tenant sent it.
///
/// It must stay the same over a client's retries. A token that is refreshed between two of them would make the second a
/// new request.
#[derive(Clone)]
pub struct Principals(Arc<PrincipalRule>);

type PrincipalRule = dyn Fn(&Parts) -> Result<String, NoTenant> + Send + Sync;

impl Principals {
    /// Nobody says who the principal is, so a policy that asks for one refuses.
    pub fn none() -> Principals {
        Principals::by(|_| Err(NoTenant))
    }

    /// By a rule of your own.
    pub fn by(rule: impl Fn(&Parts) -> Result<String, NoTenant> + Send + Sync + 'static) -> Principals {
        Principals(Arc::new(rule))
    }

    pub(crate) fn find(&self, head: &Parts) -> Result<String, NoTenant> {
        (self.0)(head)
    }
}

/// The request does not say whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoTenant;

impl Tenants {
    /// Every request is the one tenant's: for deployments that have no others.
    pub fn only() -> Tenants {
        Tenants::by(|_| Ok(Tenant::only()))
    }

    /// The [`Tenant`] that your authentication put into the request's extensions. Put the guard inside of it.
    pub fn from_extension() -> Tenants {
        Tenants::by(|head| head.extensions.get::<Tenant>().cloned().ok_or(NoTenant))
    }

    /// By a rule of your own. It must come from authentication, never from the body.
    pub fn by(rule: impl Fn(&Parts) -> Result<Tenant, NoTenant> + Send + Sync + 'static) -> Tenants {
        Tenants(Arc::new(rule))
    }

    pub(crate) fn find(&self, head: &Parts) -> Result<Tenant, NoTenant> {
        (self.0)(head)
    }
}
