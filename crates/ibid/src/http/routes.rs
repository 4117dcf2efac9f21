//! Which requests are guarded, and by which Policy. Every POST and PATCH is, unless a rule says otherwise.

use std::collections::HashMap;
use std::sync::Arc;

use http::Method;
use ibid_core::policy::{KeyRule, Policy, PolicyError, Profile};

/// The policies of an API: one for all, and rules that refine it.
#[derive(Clone, Debug)]
pub struct Routes {
    defaults: Route,
    rules: Vec<(Rule, Option<Route>)>,
    by_method: HashMap<Method, matchit::Router<usize>>,
}

/// One rule, as configured.
#[derive(Clone, Debug)]
pub struct Rule {
    /// For which methods.
    pub methods: Vec<Method>,
    /// For which paths: `{name}` and `{*rest}` as in axum.
    pub pattern: String,
    /// The policy; none exempts the route.
    pub policy: Option<Policy>,
    /// Who reserves the key.
    pub begins: Begins,
}

/// Who reserves a route's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begins {
    /// The guard, durably and before the handler runs.
    #[default]
    Guard,
    /// The handler, as the first statement of its own transaction ([`Unbegun`](super::Unbegun)): for handlers that touch
    /// only the database.
    Handler,
}

/// The policy that governs a request, and the pattern it was found by.
#[derive(Clone, Debug)]
pub struct Route {
    /// The pattern, `*` when no rule matched: the only name of a route in metrics.
    pub pattern: Arc<str>,
    /// Its rules.
    pub policy: Arc<Policy>,
    /// Who reserves the key.
    pub begins: Begins,
}

/// A rule that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoutesError {
    /// Its policy can't be kept.
    #[error("{0}")]
    Policy(#[from] PolicyError),
    /// Its pattern is wrong, or another rule covers the same paths.
    #[error("the pattern `{pattern}` {problem}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        problem: String,
    },
    /// GET, HEAD, OPTIONS, TRACE and CONNECT are never guarded.
    #[error("{0} is never guarded")]
    Method(Method),
}

impl Default for Routes {
    fn default() -> Self {
        let defaults =
            Route { pattern: Arc::from("*"), policy: Arc::new(Policy::default()), begins: Begins::Guard };
        Routes { defaults, rules: Vec::new(), by_method: HashMap::new() }
    }
}

impl Routes {
    /// Every POST and PATCH under `defaults`, and what the rules say.
    pub fn new(defaults: Policy, rules: Vec<Rule>) -> Result<Routes, RoutesError> {
        defaults.check()?;
        if defaults.is_exempt() {
            let problem = "`false` is for routes: it would exempt every request";
            return Err(PolicyError { field: "repeatable", problem: problem.to_owned() }.into());
        }
        let mut routes = Routes {
            defaults: Route { pattern: Arc::from("*"), policy: Arc::new(defaults), begins: Begins::Guard },
            ..Routes::default()
        };
        for rule in rules {
            routes.add(rule)?;
        }
        Ok(routes)
    }

    /// The route that guards this request; none if it passes untouched.
    pub fn find(&self, method: &Method, path: &str) -> Option<&Route> {
        if is_never_guarded(method) {
            return None;
        }
        let rule =
            self.by_method.get(method).and_then(|router| router.at(path).ok()).map(|found| *found.value);
        match rule.map(|index| &self.rules[index].1) {
            Some(Some(route)) => Some(route),
            // An upstream may read `/open/../payments` as another path: what is exempt must be exempt to the letter.
            Some(None) if is_plain(path) => None,
            Some(None) => Some(&self.defaults),
            None => (*method == Method::POST || *method == Method::PATCH).then_some(&self.defaults),
        }
    }

    /// The policy of everything that no rule covers.
    pub fn defaults(&self) -> &Policy {
        &self.defaults.policy
    }

    /// Every route that is guarded, as metrics name it.
    pub(super) fn named(&self) -> impl Iterator<Item = (&Arc<str>, Profile)> {
        let routes = self.rules.iter().filter_map(|(_, route)| route.as_ref()).chain([&self.defaults]);
        routes.map(|route| (&route.pattern, route.policy.profile))
    }

    /// The patterns of guarded routes on which keys are optional.
    pub(super) fn with_optional_keys(&self) -> impl Iterator<Item = &Arc<str>> {
        let routes = self.rules.iter().filter_map(|(_, route)| route.as_ref()).chain([&self.defaults]);
        routes.filter(|route| route.policy.key == KeyRule::Optional).map(|route| &route.pattern)
    }

    /// The rules, in their order.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|(rule, _)| rule)
    }

    fn add(&mut self, mut rule: Rule) -> Result<(), RoutesError> {
        if let Some(policy) = &rule.policy {
            policy.check()?;
        }
        // From here on it is an exempt route like any other, and listed as one.
        rule.policy = rule.policy.filter(|policy| !policy.is_exempt());
        if let Some(method) = rule.methods.iter().find(|method| is_never_guarded(method)) {
            return Err(RoutesError::Method(method.clone()));
        }
        for method in &rule.methods {
            let router = self.by_method.entry(method.clone()).or_default();
            router.insert(rule.pattern.clone(), self.rules.len()).map_err(|error| RoutesError::Pattern {
                pattern: rule.pattern.clone(),
                problem: error.to_string(),
            })?;
        }
        let route = rule.policy.clone().map(|mut policy| {
            // It travels with the record, whose own route a later configuration may not have.
            if let Some(reconcile) = &mut policy.reconcile {
                reconcile.route.get_or_insert_with(|| rule.pattern.clone());
            }
            Route { pattern: Arc::from(rule.pattern.as_str()), policy: Arc::new(policy), begins: rule.begins }
        });
        self.rules.push((rule, route));
        Ok(())
    }
}

fn is_never_guarded(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::CONNECT].contains(method)
}

/// Whether no server reads another path into this one: no dot segments, empty segments or encoded dots, slashes and
/// backslashes.
fn is_plain(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    !["/./", "/../", "//", "\\", "%2e", "%2f", "%5c"].iter().any(|odd| lower.contains(odd))
        && !lower.ends_with("/.")
        && !lower.ends_with("/..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(methods: &[Method], pattern: &str, policy: Option<Policy>) -> Rule {
        Rule { methods: methods.to_vec(), pattern: pattern.to_owned(), policy, begins: Begins::Guard }
    }

    fn found(routes: &Routes, method: Method, path: &str) -> Option<String> {
        routes.find(&method, path).map(|route| route.pattern.to_string())
    }

    #[test]
    fn every_post_and_patch_is_guarded_and_the_safe_methods_never_are() {
        let routes = Routes::default();
        for method in [Method::POST, Method::PATCH] {
            assert_eq!(found(&routes, method, "/any"), Some("*".to_owned()));
        }
        for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE]
        {
            assert_eq!(found(&routes, method, "/any"), None);
        }
    }

    #[test]
    fn a_rule_guards_put_and_delete_and_only_guard_off_exempts() {
        let rules = vec![
            rule(&[Method::PUT, Method::DELETE], "/orders/{id}", Some(Policy::payments())),
            rule(&[Method::POST], "/open/{*rest}", None),
        ];
        let routes = Routes::new(Policy::default(), rules).unwrap();
        assert_eq!(found(&routes, Method::PUT, "/orders/7"), Some("/orders/{id}".to_owned()));
        assert_eq!(found(&routes, Method::POST, "/orders/7"), Some("*".to_owned()));
        assert_eq!(found(&routes, Method::POST, "/open/x"), None);
        assert_eq!(found(&routes, Method::PATCH, "/open/x"), Some("*".to_owned()));
    }

    #[test]
    fn a_path_that_a_server_may_read_differently_is_not_exempt() {
        let routes =
            Routes::new(Policy::default(), vec![rule(&[Method::POST], "/open/{*rest}", None)]).unwrap();
        for path in [
            "/open/../payments",
            "/open/%2e%2e/payments",
            "/open//x",
            "/open/..%2fpayments",
            "/open/a\\..\\b",
        ] {
            assert_eq!(found(&routes, Method::POST, path), Some("*".to_owned()), "{path}");
        }
    }

    #[test]
    fn bad_rules_are_refused() {
        let refused = |rules| Routes::new(Policy::default(), rules).expect_err("a bad rule");
        assert!(matches!(refused(vec![rule(&[Method::GET], "/x", None)]), RoutesError::Method(_)));
        assert!(matches!(refused(vec![rule(&[Method::POST], "/{a", None)]), RoutesError::Pattern { .. }));
        let twice = || rule(&[Method::POST], "/x/{a}", None);
        assert!(matches!(refused(vec![twice(), twice()]), RoutesError::Pattern { .. }));
    }
}
