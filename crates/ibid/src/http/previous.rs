//! The identity of a store as its routes define it, and the names that a request's record would have under previous
//! identities.

use std::borrow::Cow;
use std::sync::Arc;

use http::Method;
use ibid_core::key::KeyForm;
use ibid_core::key_source::HeadSearch;
use ibid_core::machine::{BeginRequest, PreviousName};
use ibid_core::policy::{BindRule, IdentityRules, Policy};
use ibid_core::scope::{Identity, Operation, RecordId};

use super::intake::HttpRequestView;
use super::layer::LayerState;
use super::original_uri;
use super::routes::{ReservedBy, Routes, Rule};
use crate::identity::{PreviousIdentity, StoreIdentity};

impl Routes {
    /// Returns the identity of a store under these routes: all that goes into the ids of its records. `tenant` names the
    /// source of the tenant, such as `header:x-tenant-id` or `access token`. Change the name when the source changes.
    pub fn identity(&self, tenant: &str) -> StoreIdentity {
        let routes = self.rules().filter_map(|rule| Some((rule, rule.policy.as_ref()?.identity())));
        let routes = routes.flat_map(|(rule, rules)| {
            let named =
                |method: &Method| format!("{} {}", method.as_str().to_ascii_uppercase(), rule.pattern);
            rule.methods.iter().map(move |method| (named(method), rules.clone()))
        });
        StoreIdentity::of(tenant, self.defaults().identity(), routes)
    }
}

/// The routes of previous identities, newest first, as far as they matter for a record's id.
#[derive(Clone, Debug, Default)]
pub(super) struct PreviousRoutes(Vec<(Routes, StoreIdentity)>);

impl PreviousRoutes {
    /// Builds the routes of the stored identities.
    ///
    /// # Panics
    ///
    /// Panics if a stored pattern cannot be used. Without it, records would not be found, and their requests would be executed
    /// again.
    pub(super) fn new(previous: &[PreviousIdentity]) -> PreviousRoutes {
        let routes =
            previous.iter().map(|previous| (routes_of(&previous.identity), previous.identity.clone()));
        PreviousRoutes(routes.collect())
    }

    /// Returns the names of a request's record under previous identities, as far as they differ from its current name.
    pub(super) fn names(
        &self,
        shared: &LayerState,
        asked: &Arc<HttpRequestView>,
        ask: &BeginRequest,
    ) -> Vec<PreviousName> {
        let mut names: Vec<PreviousName> = Vec::new();
        for (rules, path) in self.rules_of(asked) {
            // A request that was refused under these rules, without a key or a principal, has no record.
            let Ok(Some(key)) = rules.key_from.find(&**asked, KeyForm::QuotedOrBare) else { continue };
            let principal = match rules.bind {
                BindRule::Tenant => None,
                BindRule::Principal => match shared.principals.find(&asked.head) {
                    Ok(principal) => Some(principal),
                    Err(_) => continue,
                },
            };
            // The fingerprint covers the path as the scope names it, so it is computed with the path of that identity.
            let asked = match path == *asked.operation.path {
                true => asked.clone(),
                false => Arc::new(HttpRequestView {
                    head: asked.head.clone(),
                    body: asked.body.clone(),
                    operation: Operation { path: path.into(), ..asked.operation.clone() },
                }),
            };
            let tenant = ask.identity.tenant.clone();
            let key = rules.compared_key(key);
            let identity = Identity { tenant, operation: asked.operation.clone(), key };
            let id = RecordId::bound(&identity, rules.scope, principal.as_deref());
            if id != ask.id && names.iter().all(|name| name.id != id) {
                names.push(PreviousName { id, identity: Arc::new(identity), asked });
            }
        }
        names
    }

    /// Returns the ids that a record would have under previous identities, without its request. `principal` is called only
    /// where keys were bound to one.
    pub(super) fn ids(&self, current: &Identity, principal: impl Fn() -> Option<String>) -> Vec<RecordId> {
        let operation = &current.operation;
        let ids = self.rules_over(&operation.method, &operation.path).filter_map(|rules| {
            let principal = match rules.bind {
                BindRule::Tenant => None,
                BindRule::Principal => Some(principal()?),
            };
            Some(RecordId::bound(current, rules.scope, principal.as_deref()))
        });
        ids.collect()
    }

    /// Returns whether a request may carry its key in a source of a previous identity, judged by its head alone.
    pub(super) fn may_find_key(&self, asked: &HttpRequestView) -> bool {
        let mut rules = self.rules_of(asked);
        rules.any(|(rules, _)| {
            rules.key_from.find_in_head(asked, KeyForm::QuotedOrBare) != Ok(HeadSearch::Absent)
        })
    }

    /// Returns whether a request carries its key in a source of a previous identity.
    pub(super) fn finds_key(&self, asked: &HttpRequestView) -> bool {
        let mut rules = self.rules_of(asked);
        rules.any(|(rules, _)| rules.key_from.find(asked, KeyForm::QuotedOrBare) != Ok(None))
    }

    /// Returns the rules of each previous identity for a request, each with the path that they put into the scope.
    fn rules_of<'a>(
        &'a self,
        asked: &'a HttpRequestView,
    ) -> impl Iterator<Item = (&'a IdentityRules, Cow<'a, str>)> {
        let path = original_uri(&asked.head.extensions, &asked.head.uri).path();
        self.rules_over(&asked.operation.method, path).map(move |rules| (rules, rules.path_of_scope(path)))
    }

    /// Returns the rules of each previous identity for this operation.
    fn rules_over<'a>(&'a self, method: &'a str, path: &'a str) -> impl Iterator<Item = &'a IdentityRules> {
        let parsed = Method::from_bytes(method.as_bytes()).ok();
        self.0.iter().map(move |(routes, identity)| {
            let route = parsed.as_ref().and_then(|method| routes.find(method, path));
            let pattern = route.map_or("*", |route| &*route.pattern);
            identity.rules_of(&format!("{method} {pattern}"))
        })
    }
}

/// Builds routes that find the pattern of a request; the rules of that pattern are in the identity.
fn routes_of(identity: &StoreIdentity) -> Routes {
    let policy = |rules: &IdentityRules| Policy::default().with(|policy| policy.path = rules.path);
    let rules = identity.routes().filter_map(|(route, rules)| {
        let (method, pattern) = route.split_once(' ')?;
        Some(Rule {
            methods: vec![Method::from_bytes(method.as_bytes()).ok()?],
            pattern: pattern.to_owned(),
            policy: Some(policy(rules)),
            reserved_by: ReservedBy::Layer,
        })
    });
    Routes::new(policy(identity.defaults()), rules.collect())
        .expect("the patterns of a stored identity were valid when it was stored")
}
