//! Routes: which requests are guarded, and by which policy. Every method is guarded except GET, HEAD, OPTIONS, TRACE and QUERY,
//! and PUT and DELETE unless a rule guards them.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use http::Method;
use ibid_core::path;
use ibid_core::policy::{KeyRule, PathRule, Policy, PolicyError, Profile};
use ibid_core::refusal::Refusal;

use crate::telemetry::RouteCounters;

/// The policies of an API: one for all, and rules that refine it.
#[derive(Clone, Debug)]
#[must_use = "routes take effect once they are given to the layer"]
pub struct Routes {
    /// Routes are shared: each guarded request holds the one that it runs under.
    defaults: Arc<Route>,
    rules: Vec<(Rule, Option<Arc<Route>>)>,
    by_method: HashMap<Method, matchit::Router<usize>>,
    /// Methods that at least one rule guards.
    guarded: HashSet<Method>,
}

/// Whether a request is guarded.
#[derive(Clone, Debug)]
pub enum Ruling<'r, 'p> {
    /// The request is guarded.
    Guarded {
        /// The route that guards it.
        route: &'r Arc<Route>,
        /// The path in the scope of its key.
        path: Cow<'p, str>,
    },
    /// The request is not guarded and passes untouched.
    Passes,
    /// The request is refused, because it is ambiguous which operation it asks for.
    Refused {
        /// The route whose profile renders the refusal.
        route: &'r Route,
        /// The reason.
        refusal: Refusal,
    },
}

/// One rule, as configured.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The methods that it covers.
    pub methods: Vec<Method>,
    /// The paths that it covers: `{name}` and `{*rest}` as in axum.
    pub pattern: String,
    /// The policy; `None` exempts the route.
    pub policy: Option<Policy>,
    /// Who reserves the key.
    pub reserved_by: ReservedBy,
}

/// Who reserves a route's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReservedBy {
    /// The layer, durably and before the handler runs.
    #[default]
    Layer,
    /// The handler, as the first statement of its own transaction ([`UnreservedRequest`](super::UnreservedRequest)):
    /// for handlers that touch only the database.
    Handler,
}

/// A guarded route: the policy of its requests, and the pattern that they match.
#[derive(Clone, Debug)]
pub struct Route {
    /// The pattern, `*` if no rule matched: the only name of a route in metrics.
    pub pattern: Arc<str>,
    /// The policy of its requests.
    pub policy: Arc<Policy>,
    /// Who reserves the key.
    pub reserved_by: ReservedBy,
    pub(super) counters: RouteCounters,
}

impl Route {
    pub(super) fn new(pattern: Arc<str>, policy: Arc<Policy>, reserved_by: ReservedBy) -> Arc<Route> {
        let counters = RouteCounters::new(&pattern, policy.profile);
        Arc::new(Route { pattern, policy, reserved_by, counters })
    }
}

/// A rule that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutesError {
    /// Its policy can't be kept.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Its pattern is wrong, or another rule covers the same paths.
    #[error("the pattern `{pattern}` {problem}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        problem: String,
    },
    /// GET, HEAD, OPTIONS, TRACE, QUERY and CONNECT are never guarded.
    #[error("{0} is never guarded")]
    Method(Method),
}

impl Default for Routes {
    fn default() -> Self {
        let defaults = Route::new(Arc::from("*"), Arc::new(Policy::default()), ReservedBy::Layer);
        Routes { defaults, rules: Vec::new(), by_method: HashMap::new(), guarded: HashSet::new() }
    }
}

impl Routes {
    /// Everything that is guarded by default under `defaults`, and what the rules say.
    pub fn new(defaults: Policy, rules: Vec<Rule>) -> Result<Routes, RoutesError> {
        defaults.check()?;
        if defaults.is_exempt() {
            let problem = "`false` is for routes: it would exempt every request";
            return Err(PolicyError { field: "repeatable", problem: problem.to_owned() }.into());
        }
        let mut routes = Routes {
            defaults: Route::new(Arc::from("*"), Arc::new(defaults), ReservedBy::Layer),
            ..Routes::default()
        };
        for rule in rules {
            routes.add(rule)?;
        }
        routes.add_trailing_slashes();
        Ok(routes)
    }

    /// Decides about a request by its method and its path as sent, without the query.
    pub fn judge<'p>(&self, method: &Method, sent: &'p str) -> Ruling<'_, 'p> {
        let method = upper_case(method);
        let by_default = is_guarded_by_default(&method);
        if !by_default && !self.guarded.contains(&*method) {
            return Ruling::Passes;
        }
        if !sent.starts_with('/') {
            return Ruling::Refused { route: &self.defaults, refusal: Refusal::TargetInvalid };
        }
        let path = path::normalized(sent);
        let find = |path: &str| self.by_method.get(&*method)?.at(path).ok().map(|found| *found.value);
        // Without its parameters a path may be that of a guarding rule, to servers that drop them.
        let is_guarding = |index: &usize| self.rules[*index].1.is_some();
        let found = find(&path).or_else(|| find(&path::without_parameters(&path)?).filter(is_guarding));
        let ambiguous = Ruling::Refused { route: &self.defaults, refusal: Refusal::PathAmbiguous };
        let is_strict = self.defaults.policy.path == PathRule::Strict;
        match found.map(|index| &self.rules[index].1) {
            Some(Some(route)) => guarded(route, sent, path),
            // An upstream may read `/open/..;/payments` as another path, so an exempt path must be harmless. Under
            // `as-sent` it must match as it was sent.
            Some(None) if is_strict && path::is_harmless(sent) => Ruling::Passes,
            Some(None) if is_strict => ambiguous,
            Some(None) if find(sent) == found => Ruling::Passes,
            _ if by_default => guarded(&self.defaults, sent, path),
            // A PUT or DELETE that some server would read as one on a guarded route.
            _ if is_strict && (path::is_ambiguous(sent) || path::hides_separator(sent)) => ambiguous,
            _ => Ruling::Passes,
        }
    }

    /// The route that guards this request; none if it passes untouched or is refused.
    pub fn find(&self, method: &Method, path: &str) -> Option<&Route> {
        match self.judge(method, path) {
            Ruling::Guarded { route, .. } => Some(route),
            Ruling::Passes | Ruling::Refused { .. } => None,
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
        let path = match &rule.policy {
            Some(policy) => policy.path,
            None => self.defaults.policy.path,
        };
        let bad = |problem: String| RoutesError::Pattern { pattern: rule.pattern.clone(), problem };
        let pattern = path::normalized_pattern(&rule.pattern);
        if path == PathRule::Strict && !path::is_reachable(&pattern, rule.policy.is_none()) {
            return Err(bad(UNREACHABLE.to_owned()));
        }
        for method in &rule.methods {
            let router = self.by_method.entry(upper_case(method).into_owned()).or_default();
            router.insert(pattern.clone(), self.rules.len()).map_err(|error| bad(error.to_string()))?;
            if rule.policy.is_some() {
                self.guarded.insert(upper_case(method).into_owned());
            }
        }
        let route = rule.policy.clone().map(|mut policy| {
            policy.route.get_or_insert_with(|| rule.pattern.clone());
            // It travels with the record, whose own route a later configuration may not have.
            if let Some(reconcile) = &mut policy.reconcile {
                reconcile.route.get_or_insert_with(|| rule.pattern.clone());
            }
            Route::new(Arc::from(rule.pattern.as_str()), Arc::new(policy), rule.reserved_by)
        });
        self.rules.push((rule, route));
        Ok(())
    }

    /// Lets each guarding rule match with and without a trailing slash, which many servers take for the same path. An
    /// exempt rule matches only as it is written.
    fn add_trailing_slashes(&mut self) {
        for (index, (rule, route)) in self.rules.iter().enumerate() {
            let Some(pattern) = path::other_trailing_slash(&path::normalized_pattern(&rule.pattern)) else {
                continue;
            };
            for method in rule.methods.iter().filter(|_| route.is_some()) {
                let router = self.by_method.entry(upper_case(method).into_owned()).or_default();
                // It conflicts only with a rule that is written for this very path, and that one wins.
                let _ = router.insert(pattern.clone(), index);
            }
        }
    }
}

/// The method in upper case: many servers read `patch` as PATCH.
pub(super) fn upper_case(method: &Method) -> Cow<'_, Method> {
    if !method.as_str().bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Cow::Borrowed(method);
    }
    let upper = method.as_str().to_ascii_uppercase();
    Cow::Owned(Method::from_bytes(upper.as_bytes()).expect("a method stays one in upper case"))
}

fn is_never_guarded(method: &Method) -> bool {
    let method = upper_case(method);
    // CONNECT has no path and no answer to keep, and the gateway refuses it.
    *method == Method::CONNECT || UNGUARDED_METHODS.contains(&method.as_str())
}

fn is_guarded_by_default(method: &Method) -> bool {
    !is_never_guarded(method) && !UNGUARDED_UNLESS_ROUTED.contains(method)
}

fn guarded<'r, 'p>(route: &'r Arc<Route>, sent: &'p str, normalized: Cow<'p, str>) -> Ruling<'r, 'p> {
    if sent.len() > path::PATH_BYTES_MAX {
        return Ruling::Refused { route, refusal: Refusal::PathTooLong };
    }
    match route.policy.path {
        PathRule::AsSent => Ruling::Guarded { route, path: Cow::Borrowed(sent) },
        PathRule::Strict if path::is_ambiguous(sent) => {
            Ruling::Refused { route, refusal: Refusal::PathAmbiguous }
        }
        PathRule::Strict => Ruling::Guarded { route, path: normalized },
    }
}

/// Methods that change nothing, so repeating them is safe already.
pub(super) const UNGUARDED_METHODS: [&str; 5] = ["GET", "HEAD", "OPTIONS", "TRACE", "QUERY"];

/// Methods that HTTP calls idempotent: guarded where a rule says that this API's are not.
pub(super) const UNGUARDED_UNLESS_ROUTED: [Method; 2] = [Method::PUT, Method::DELETE];

/// Why a pattern is refused that no strict route can be reached by.
const UNREACHABLE: &str =
    "matches nothing: servers read such a path differently, so under `path = \"strict\"` it is refused";

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(methods: &[Method], pattern: &str, policy: Option<Policy>) -> Rule {
        Rule {
            methods: methods.to_vec(),
            pattern: pattern.to_owned(),
            policy,
            reserved_by: ReservedBy::Layer,
        }
    }

    /// How a request is judged, in a word: its pattern and scope, `passes`, or the refusal's code.
    fn judged(routes: &Routes, method: &str, path: &str) -> String {
        match routes.judge(&Method::from_bytes(method.as_bytes()).unwrap(), path) {
            Ruling::Guarded { route, path } => format!("{} {path}", route.pattern),
            Ruling::Passes => "passes".to_owned(),
            Ruling::Refused { refusal, .. } => refusal.code().to_owned(),
        }
    }

    fn check(routes: &Routes, cases: &[(&str, &str, &str)]) {
        for (method, path, expected) in cases {
            assert_eq!(judged(routes, method, path), *expected, "{method} {path}");
        }
    }

    fn guarding(methods: &[Method], pattern: &str) -> Rule {
        rule(methods, pattern, Some(Policy::default()))
    }

    #[test]
    fn every_method_is_guarded_but_the_five_safe_ones() {
        let routes = Routes::default();
        for method in ["POST", "PATCH", "post", "Post", "patch", "LOCK", "PURGE", "mkcol", "X"] {
            assert_eq!(judged(&routes, method, "/any"), "* /any", "{method}");
        }
        for method in ["GET", "HEAD", "OPTIONS", "TRACE", "QUERY", "PUT", "DELETE", "get", "Query", "delete"]
        {
            assert_eq!(judged(&routes, method, "/any"), "passes", "{method}");
        }
    }

    #[test]
    fn a_rule_guards_put_and_delete_and_only_guard_off_exempts() {
        let rules = vec![
            guarding(&[Method::PUT, Method::DELETE], "/orders/{id}"),
            rule(&[Method::POST], "/open/{*rest}", None),
        ];
        let routes = Routes::new(Policy::default(), rules).unwrap();
        check(
            &routes,
            &[
                ("PUT", "/orders/7", "/orders/{id} /orders/7"),
                ("PUT", "/orders;x=1/7", "/orders/{id} /orders;x=1/7"),
                ("PUT", "/orders%3bx/7", "/orders/{id} /orders%3Bx/7"),
                ("PUT", "/carts;x=1/7", "passes"),
                ("put", "/orders/7", "/orders/{id} /orders/7"),
                ("DELETE", "/orders/7", "/orders/{id} /orders/7"),
                ("PUT", "/carts/7", "passes"),
                ("POST", "/orders/7", "* /orders/7"),
                ("POST", "/open/x", "passes"),
                ("post", "/open/x", "passes"),
                ("PATCH", "/open/x", "* /open/x"),
            ],
        );
    }

    #[test]
    fn a_path_has_one_scope_however_it_is_escaped() {
        let routes = Routes::new(
            Policy::default(),
            vec![guarding(&[Method::POST, Method::PUT], "/orders/{id}"), guarding(&[Method::POST], "/café")],
        );
        check(
            &routes.unwrap(),
            &[
                ("POST", "/%6frders/%31", "/orders/{id} /orders/1"),
                ("PUT", "/%6Frders/1", "/orders/{id} /orders/1"),
                ("POST", "/orders/a%2fb", "/orders/{id} /orders/a%2Fb"),
                ("POST", "/caf%c3%a9", "/café /caf%C3%A9"),
                ("POST", "/%70ayments", "* /payments"),
            ],
        );
    }

    #[test]
    fn a_guarding_rule_matches_with_and_without_a_last_slash() {
        let rules = vec![
            guarding(&[Method::PUT], "/orders/{id}"),
            guarding(&[Method::POST], "/django/"),
            rule(&[Method::POST], "/open", None),
            rule(&[Method::POST], "/rest/{*rest}", None),
            guarding(&[Method::POST], "/rest/payments"),
            guarding(&[Method::POST], "/both"),
            rule(&[Method::POST], "/both/", None),
        ];
        check(
            &Routes::new(Policy::default(), rules).unwrap(),
            &[
                // The slash is part of the scope, because most servers tell the two apart.
                ("PUT", "/orders/1", "/orders/{id} /orders/1"),
                ("PUT", "/orders/1/", "/orders/{id} /orders/1/"),
                ("PUT", "/orders/1//", "path-ambiguous"),
                ("POST", "/django/", "/django/ /django/"),
                ("POST", "/django", "/django/ /django"),
                ("POST", "/open", "passes"),
                ("POST", "/open/", "* /open/"),
                ("POST", "/rest/x", "passes"),
                ("POST", "/rest/payments/", "/rest/payments /rest/payments/"),
                ("POST", "/both", "/both /both"),
                ("POST", "/both/", "passes"),
                ("POST", "/", "* /"),
            ],
        );
    }

    #[test]
    fn an_ambiguous_path_is_refused_where_its_method_is_guarded() {
        let rules =
            vec![guarding(&[Method::PUT], "/orders/{id}"), rule(&[Method::POST], "/open/{*rest}", None)];
        let routes = Routes::new(Policy::default(), rules).unwrap();
        for path in ["/orders//1", "//orders/1", "/orders/./1", "/x/../orders/1", "/x/..;/orders/1", "/%zz"] {
            for method in ["POST", "PATCH", "PUT", "put"] {
                assert_eq!(judged(&routes, method, path), "path-ambiguous", "{method} {path}");
            }
            for method in ["GET", "HEAD", "DELETE"] {
                assert_eq!(judged(&routes, method, path), "passes", "{method} {path}");
            }
        }
    }

    #[test]
    fn a_hidden_slash_is_refused_only_where_it_would_pass() {
        let rules =
            vec![guarding(&[Method::PUT], "/orders/{id}"), rule(&[Method::POST], "/open/{*rest}", None)];
        let routes = Routes::new(Policy::default(), rules).unwrap();
        for (hidden, scope) in [("a%2Fb", "a%2Fb"), ("a%5cb", "a%5Cb"), ("a\\b", "a\\b")] {
            let at = |prefix: &str| format!("{prefix}{hidden}");
            assert_eq!(judged(&routes, "PUT", &at("/orders/")), format!("/orders/{{id}} /orders/{scope}"));
            assert_eq!(judged(&routes, "POST", &at("/files/")), format!("* /files/{scope}"));
            assert_eq!(judged(&routes, "POST", &at("/open/")), "path-ambiguous");
            assert_eq!(judged(&routes, "PUT", &at("/files/")), "path-ambiguous");
            assert_eq!(judged(&routes, "DELETE", &at("/files/")), "passes", "no rule guards DELETE");
        }
    }

    #[test]
    fn an_exempt_rule_takes_harmless_paths_only() {
        let rules = vec![rule(&[Method::POST], "/open/{*rest}", None), rule(&[Method::POST], "/login", None)];
        let routes = Routes::new(Policy::default(), rules).unwrap();
        for path in [
            "/open/../payments",
            "/open/%2e%2e/payments",
            "/open//x",
            "/open/..%2fpayments",
            "/open/a\\..\\b",
            "/open/..;/payments",
            "/open/..;a=b/payments",
            "/open/x/..;/..;/payments",
            "/open/.;/x",
            "/open/%252e%252e/payments",
            "/open/..%3b/payments",
            "/open/..%00/payments",
            "/open/..%09/payments",
            "/open/..%20/payments",
            "/open/..%0d/payments",
            "/open/%c0%ae%c0%ae/payments",
            "/open/%u002e%u002e/payments",
            "/open/..%c0%af..",
            "/open/..\u{a0}/payments",
            "/open/a;b",
            "/open/100%25",
        ] {
            assert_eq!(judged(&routes, "POST", path), "path-ambiguous", "{path}");
        }
        for path in
            ["/open/x", "/open/x/y/", "/open/ann@example.com", "/open/caf%C3%A9", "/%6fpen/x", "/login"]
        {
            assert_eq!(judged(&routes, "POST", path), "passes", "{path}");
        }
    }

    #[test]
    fn as_sent_takes_a_path_as_it_is() {
        let as_sent = || Policy { path: PathRule::AsSent, ..Policy::default() };
        let rules = || {
            vec![
                rule(&[Method::POST], "/files/{*rest}", Some(as_sent())),
                rule(&[Method::POST], "/open/{*rest}", None),
                guarding(&[Method::POST, Method::PUT], "/orders/{id}"),
            ]
        };
        // On one route.
        check(
            &Routes::new(Policy::default(), rules()).unwrap(),
            &[
                ("POST", "/files/a//%70/../b", "/files/{*rest} /files/a//%70/../b"),
                ("POST", "/else//x", "path-ambiguous"),
            ],
        );
        // As the default.
        check(
            &Routes::new(as_sent(), rules()).unwrap(),
            &[
                ("POST", "/a//%70", "* /a//%70"),
                ("POST", "/open/..;/x", "passes"),
                ("POST", "/%6fpen/x", "* /%6fpen/x"),
                ("POST", "/%6frders/1", "/orders/{id} /orders/1"),
                ("POST", "/orders/..", "path-ambiguous"),
                ("PUT", "/a//b", "passes"),
            ],
        );
    }

    #[test]
    fn a_target_without_a_path_is_refused_where_it_would_be_guarded() {
        let routes = Routes::default();
        for target in ["*", "", "p"] {
            assert_eq!(judged(&routes, "POST", target), "target-invalid", "{target}");
            assert_eq!(judged(&routes, "OPTIONS", target), "passes", "{target}");
        }
    }

    #[test]
    fn a_path_over_two_kib_is_refused_where_it_would_be_guarded() {
        let (fits, long) = (format!("/{}", "a".repeat(2047)), format!("/{}", "a".repeat(2048)));
        let routes = Routes::default();
        assert_eq!(judged(&routes, "POST", &fits), format!("* {fits}"));
        assert_eq!(judged(&routes, "POST", &long), "path-too-long");
        assert_eq!(judged(&routes, "PUT", &long), "passes");
    }

    #[test]
    fn bad_rules_are_refused() {
        let refused = |rules| Routes::new(Policy::default(), rules).expect_err("a bad rule");
        for method in ["GET", "QUERY", "TRACE", "CONNECT", "get"] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert!(matches!(refused(vec![rule(&[method], "/x", None)]), RoutesError::Method(_)));
        }
        for dead in ["/a//b", "/a/../b", "/a/%zz"] {
            let dead = guarding(&[Method::POST], dead);
            assert!(matches!(refused(vec![dead]), RoutesError::Pattern { .. }));
        }
        let dead = rule(&[Method::POST], "/a;b/{id}", None);
        assert!(matches!(refused(vec![dead]), RoutesError::Pattern { .. }));
        assert!(matches!(refused(vec![rule(&[Method::POST], "/{a", None)]), RoutesError::Pattern { .. }));
        let twice = || rule(&[Method::POST], "/x/{a}", None);
        assert!(matches!(refused(vec![twice(), twice()]), RoutesError::Pattern { .. }));
    }
}
