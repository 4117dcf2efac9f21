//! The identity of a store: the settings that go into the ids of its records. It is stored, compared at every start, and
//! changed by an operator.
//!
//! Under a different identity a retry finds no record and is executed again. So a process whose identity differs from the
//! stored one does not start. [`change`] is the way to change it.
//!
//! ```
//! use ibid::identity::StoreIdentity;
//! # #[cfg(feature = "http")] {
//! use ibid::policy::Policy;
//! use ibid::http::Routes;
//!
//! let plain = StoreIdentity::new("access token");
//! let stripe = Routes::new(Policy::stripe(), vec![])?.identity("access token");
//! let differences = plain.differences(&stripe);
//! assert_eq!(differences[0].to_string(), "the defaults: scope `operation` → `tenant`");
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod agree;
#[doc(hidden)]
pub mod change;
mod copy_mark;
mod overlap;
mod setting;
mod tenant_secret;

use std::collections::BTreeMap;
use std::fmt;

use ibid_core::policy::IdentityRules;
use ibid_core::store::StoreError;

pub(crate) use agree::{Agreement, agree, check_open};
pub use change::RetireWait;
pub use copy_mark::{CopyMark, CopyProgress, CopyRole, TargetPhase};
pub(crate) use setting::SETTING;
pub use setting::{IdentityPhase, IdentitySetting, PreviousIdentity};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub(crate) use tenant_secret::SETTING as TENANT_SECRET_SETTING;
pub use tenant_secret::tenant_secret;

use overlap::{covers, overlaps};

/// The settings that go into the ids of a store's records.
///
/// Services whose identities differ use separate stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    tenant: String,
    tenant_secret: Option<String>,
    defaults: IdentityRules,
    /// Routes by method and pattern (`POST /payments`): those whose rules differ from the defaults, and those with the default
    /// rules that take paths away from them.
    routes: BTreeMap<String, IdentityRules>,
}

impl StoreIdentity {
    /// Creates the identity of a service whose routes have the default [`IdentityRules`]. `tenant` names the source of the
    /// tenant, such as `header:x-tenant-id` or `access token`. Change the name when the source changes.
    ///
    /// For other routes use `Routes::identity`.
    pub fn new(tenant: &str) -> StoreIdentity {
        StoreIdentity::of(tenant, IdentityRules::default(), std::iter::empty())
    }

    /// Creates the identity of a service with these default rules and the rules of each guarded route, by `METHOD /pattern`.
    pub fn of(
        tenant: &str,
        defaults: IdentityRules,
        routes: impl Iterator<Item = (String, IdentityRules)>,
    ) -> StoreIdentity {
        let all: BTreeMap<String, IdentityRules> = routes.collect();
        let differs = |route: &str| all.get(route).is_some_and(|rules| *rules != defaults);
        // If these were left out, adding `POST /a/b` (default rules) next to `POST /a/{id}` (other rules) would be no
        // difference, and would silently move the paths of `/a/b` to other ids.
        let shadows = |route: &str| all.keys().any(|other| differs(other) && overlaps(route, other));
        let routes = all.iter().filter(|(route, _)| differs(route) || shadows(route));
        let routes = routes.map(|(route, rules)| (route.clone(), rules.clone())).collect();
        StoreIdentity { tenant: tenant.to_owned(), tenant_secret: None, defaults, routes }
    }

    /// Sets the id of the secret with which tenant names are computed.
    #[must_use]
    pub fn with_tenant_secret(self, id: impl fmt::Display) -> StoreIdentity {
        StoreIdentity { tenant_secret: Some(id.to_string()), ..self }
    }

    /// Returns the name of the tenant source.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Returns the id of the secret with which tenant names are computed.
    pub fn tenant_secret(&self) -> Option<&str> {
        self.tenant_secret.as_deref()
    }

    /// Returns the rules of every path that no route of [`StoreIdentity::routes`] covers.
    pub fn defaults(&self) -> &IdentityRules {
        &self.defaults
    }

    /// Returns the routes whose rules differ from the defaults, by `METHOD /pattern`, and those that take paths away from them.
    pub fn routes(&self) -> impl Iterator<Item = (&str, &IdentityRules)> {
        self.routes.iter().map(|(route, rules)| (route.as_str(), rules))
    }

    /// Returns the rules of a route by its `METHOD /pattern`: its own if they are listed, otherwise the defaults.
    pub fn rules_of(&self, route: &str) -> &IdentityRules {
        self.routes.get(route).unwrap_or(&self.defaults)
    }

    /// Returns whether both take the tenant from the same source, under the same secret.
    pub fn has_tenant_source_of(&self, other: &StoreIdentity) -> bool {
        (&self.tenant, &self.tenant_secret) == (&other.tenant, &other.tenant_secret)
    }

    /// Lists what `ours` would change. If the list is empty, every request finds its record under the same id.
    pub fn differences(&self, ours: &StoreIdentity) -> Vec<Difference> {
        let mut all = Vec::new();
        let secret = |identity: &StoreIdentity| identity.tenant_secret.clone().unwrap_or("none".to_owned());
        all.extend(Difference::between("the tenant", "source", &self.tenant, &ours.tenant));
        all.extend(Difference::between("the tenant", "secret", &secret(self), &secret(ours)));
        all.extend(differing("the defaults", &self.defaults, &ours.defaults));
        let mut routes: Vec<&String> = self.routes.keys().chain(ours.routes.keys()).collect();
        routes.sort_unstable();
        routes.dedup();
        for route in routes {
            let (before, after) = (self.rules_over(route), ours.rules_over(route));
            let pairs = before.iter().flat_map(|old| after.iter().map(move |new| (*old, *new)));
            let differs = pairs.map(|(old, new)| differing(&format!("`{route}`"), old, new));
            all.extend(differs.max_by_key(Vec::len).unwrap_or_default());
        }
        all
    }

    /// Returns all rules that may apply to a path of `route`: its own, or those of the routes and defaults that cover its
    /// paths.
    fn rules_over(&self, route: &str) -> Vec<&IdentityRules> {
        if let Some(rules) = self.routes.get(route) {
            return vec![rules];
        }
        let over = self.routes.iter().filter(|(other, _)| overlaps(route, other));
        let mut rules: Vec<&IdentityRules> = over.map(|(_, rules)| rules).collect();
        if !self.routes.keys().any(|other| covers(other, route)) {
            rules.push(&self.defaults);
        }
        rules
    }
}

/// An identity with an unnamed tenant source and the default rules.
impl Default for StoreIdentity {
    fn default() -> StoreIdentity {
        StoreIdentity::new("unnamed")
    }
}

/// One difference between a stored identity and a process's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The part of the identity that differs: the tenant, the defaults, or a route.
    pub section: String,
    /// The field of that part that differs.
    pub field: String,
    /// The stored value of the field.
    pub stored: String,
    /// The value of the field in this process.
    pub ours: String,
}

impl Difference {
    fn between(section: &str, field: &str, stored: &str, ours: &str) -> Option<Difference> {
        let [section, field, stored, ours] = [section, field, stored, ours].map(str::to_owned);
        (stored != ours).then_some(Difference { section, field, stored, ours })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} `{}` → `{}`", self.section, self.field, self.stored, self.ours)
    }
}

fn differing(section: &str, stored: &IdentityRules, ours: &IdentityRules) -> Vec<Difference> {
    let fields = stored.fields().into_iter().zip(ours.fields());
    fields
        .filter_map(|((field, stored), (_, ours))| Difference::between(section, field, &stored, &ours))
        .collect()
}

/// A process may not use a store under its identity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The store has another identity.
    #[error("retries would not find their records: {}", join(.0))]
    Differs(Vec<Difference>),
    /// The identity is being changed.
    #[error("the identity of this store is being changed, and other processes may still act on the old one")]
    Changing,
    /// The identity was retired for another one, but not for another tenant source.
    #[error(
        "the tenant source would change from `{stored}` to `{ours}`, and no live record could be found under it"
    )]
    OtherTenant {
        /// The stored tenant source.
        stored: String,
        /// The tenant source of this process.
        ours: String,
    },
    /// A copy keeps the store closed.
    #[error("{0}")]
    Closed(Box<CopyMark>),
    /// The stored text has a format or rules that this version does not know.
    #[error("the stored identity can't be read: {0}")]
    Unreadable(String),
    /// The store did not answer.
    #[error("the store does not answer")]
    Store(#[from] StoreError),
}

fn join(differences: &[Difference]) -> String {
    differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Most previous identities whose ids are looked up. Each costs every begin one more row to read.
pub const PREVIOUS_MAX: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use ibid_core::policy::Policy;

    fn rules(policy: Policy) -> IdentityRules {
        policy.identity()
    }

    fn identity(routes: &[(&str, Policy)]) -> StoreIdentity {
        let routes = routes.iter().map(|(route, policy)| ((*route).to_owned(), rules(policy.clone())));
        StoreIdentity::of("t", IdentityRules::default(), routes)
    }

    fn list(stored: &StoreIdentity, ours: &StoreIdentity) -> Vec<String> {
        stored.differences(ours).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_route_with_the_defaults_rules_is_free() {
        let stored = identity(&[]);
        let ours = identity(&[("POST /payments", Policy::payments())]);
        assert_eq!(list(&stored, &ours), [""; 0]);
        assert_eq!(list(&ours, &stored), [""; 0]);
    }

    #[test]
    fn a_route_with_other_rules_is_a_difference_both_ways() {
        let (stored, ours) = (identity(&[]), identity(&[("POST /payments", Policy::stripe())]));
        assert_eq!(list(&stored, &ours), ["`POST /payments`: scope `operation` → `tenant`"]);
        assert_eq!(list(&ours, &stored), ["`POST /payments`: scope `tenant` → `operation`"]);
    }

    #[test]
    fn a_plain_route_that_takes_paths_from_another_is_a_difference() {
        let stored = identity(&[("POST /a/{id}", Policy::stripe())]);
        let ours = identity(&[("POST /a/{id}", Policy::stripe()), ("POST /a/b", Policy::default())]);
        assert_eq!(list(&stored, &ours), ["`POST /a/b`: scope `tenant` → `operation`"]);
        let same = identity(&[("POST /a/{id}", Policy::stripe()), ("POST /a/b", Policy::stripe())]);
        assert_eq!(list(&stored, &same), [""; 0], "its paths had these rules before");
        let patch = identity(&[("POST /a/{id}", Policy::stripe()), ("PATCH /a/b", Policy::default())]);
        assert_eq!(list(&stored, &patch), [""; 0], "another method");
    }

    #[test]
    fn tenant_source_and_secret_are_differences() {
        let stored = StoreIdentity::new("header:x").with_tenant_secret("0a");
        assert_eq!(
            list(&stored, &StoreIdentity::new("none")),
            ["the tenant: source `header:x` → `none`", "the tenant: secret `0a` → `none`"]
        );
        assert!(!stored.has_tenant_source_of(&StoreIdentity::new("header:x")));
    }
}
