//! Routes: which requests are guarded, and by which policy. Every method is guarded except GET, HEAD, OPTIONS, TRACE and QUERY,
//! and PUT and DELETE unless a rule guards them.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use http::Method;
use ibid_core::path;
use ibid_core::policy::{KeyRule, PathRule, Policy, PolicyError, Profile};
use ibid_core::refusal::Refusal;
use ibid_core::store::Tiers;

use super::counters::RouteCounters;

/// The policies of an API: a default, and rules that override it for some routes.
#[derive(Clone, Debug)]
#[must_use = "routes take effect once they are given to the layer"]
pub struct Routes {
    /// Shared, because each guarded request holds the route that it runs under.
    defaults: Arc<Route>,
    rules: Vec<(Rule, Option<Arc<Route>>)>,
    by_method: HashMap<Method, matchit::Router<usize>>,
    /// Methods that at least one rule guards.
    guarded: HashSet<Method>,
}

/// The decision about a request: guarded, passed on or refused.
#[derive(Clone, Debug)]
#[non_exhaustive]
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
    /// The request is refused: its path has more than one reading, is too long or is missing.
    Refused {
        /// The route whose profile renders the refusal.
        route: &'r Route,
        /// The reason of the refusal.
        refusal: Refusal,
    },
}

/// One rule, as configured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rule {
    /// The methods that the rule covers.
    pub methods: Vec<Method>,
    /// The paths that the rule covers: `{name}` and `{*rest}` as in axum.
    pub pattern: String,
    /// The policy; `None` exempts the route.
    pub policy: Option<Policy>,
    /// The side that reserves the key.
    pub reserved_by: ReservedBy,
}

impl Rule {
    /// Creates a rule whose keys the layer reserves. `None` exempts the route.
    pub fn new(methods: Vec<Method>, pattern: impl Into<String>, policy: Option<Policy>) -> Rule {
        Rule { methods, pattern: pattern.into(), policy, reserved_by: ReservedBy::Layer }
    }

    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Rule)) -> Rule {
        change(&mut self);
        self
    }
}

/// The side that reserves a route's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReservedBy {
    /// The layer reserves the key, durably and before the handler runs.
    #[default]
    Layer,
    /// The handler reserves the key as the first statement of the transaction that it opens
    /// ([`UnreservedRequest`](super::UnreservedRequest)). For handlers that touch only the database.
    Handler,
}

/// A guarded route: the policy of its requests, and the pattern that they match.
#[derive(Clone, Debug)]
pub struct Route {
    /// The pattern, `*` if no rule matched: the only name of a route in metrics.
    pub pattern: Arc<str>,
    /// The policy of its requests.
    pub policy: Arc<Policy>,
    /// The side that reserves the key.
    pub reserved_by: ReservedBy,
    pub(super) counters: RouteCounters,
}

impl Route {
    pub(super) fn new(pattern: Arc<str>, policy: Arc<Policy>, reserved_by: ReservedBy) -> Arc<Route> {
        let counters = RouteCounters::new(&pattern, policy.profile);
        Arc::new(Route { pattern, policy, reserved_by, counters })
    }
}

/// A rule that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutesError {
    /// The policy is not valid.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The pattern is not valid, or another rule covers the same paths.
    #[error("the pattern `{pattern}` {problem}")]
    Pattern {
        /// The pattern of the rule.
        pattern: String,
        /// The problem, as a phrase that follows the pattern.
        problem: String,
    },
    /// The rule names a method that is never guarded: GET, HEAD, OPTIONS, TRACE, QUERY or CONNECT.
    #[error("{0} is never guarded")]
    Method(Method),
    /// The route needs what the store lacks.
    #[error("the route `{pattern}` {problem}")]
    Store {
        /// The pattern of the route.
        pattern: String,
        /// The problem, as a phrase that follows the route.
        problem: &'static str,
    },
}

impl Default for Routes {
    fn default() -> Self {
        let defaults = Route::new(Arc::from("*"), Arc::new(Policy::default()), ReservedBy::Layer);
        Routes { defaults, rules: Vec::new(), by_method: HashMap::new(), guarded: HashSet::new() }
    }
}

impl Routes {
    /// Compares what the routes need with what a store can do.
    ///
    /// # Errors
    ///
    /// Fails if a route accepts requests to run later, or resumes them, on a store that keeps no requests.
    pub fn check_store(&self, tiers: Tiers) -> Result<(), RoutesError> {
        let in_handler = |rule: &&Rule| rule.policy.is_some() && rule.reserved_by == ReservedBy::Handler;
        if let Some(rule) = self.rules().find(in_handler).filter(|_| !tiers.sql) {
            let problem = "reserves keys in the handler's transaction, and the store is no SQL database";
            return Err(RoutesError::Store { pattern: rule.pattern.clone(), problem });
        }
        let rules = self.rules().filter_map(|rule| Some((rule.pattern.as_str(), rule.policy.as_ref()?)));
        for (pattern, policy) in rules.chain([("*", self.defaults())]) {
            if let Some(problem) = tiers.refusal(policy) {
                return Err(RoutesError::Store { pattern: pattern.to_owned(), problem });
            }
        }
        Ok(())
    }

    /// Guards by `rules` what they cover, and everything else that is guarded by default under `defaults`.
    ///
    /// # Errors
    ///
    /// Fails if a policy or a pattern is not valid, if two rules cover the same paths, if a rule names a method that is never
    /// guarded, or if `defaults` would exempt every request.
    pub fn new(defaults: Policy, rules: Vec<Rule>) -> Result<Routes, RoutesError> {
        defaults.check()?;
        if defaults.is_exempt() {
            let problem = "`false` is for single routes: as a default it would exempt every request";
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
        let path = path::normalize(sent);
        let find = |path: &str| self.by_method.get(&*method)?.at(path).ok().map(|matched| *matched.value);
        // A server may drop path parameters (`;x=1`) and then see the path of a guarding rule.
        let is_guarding = |index: &usize| self.rules[*index].1.is_some();
        let rule = find(&path).or_else(|| find(&path::without_parameters(&path)?).filter(is_guarding));
        let ambiguous = Ruling::Refused { route: &self.defaults, refusal: Refusal::PathAmbiguous };
        let is_strict = self.defaults.policy.path == PathRule::Strict;
        match rule.map(|index| &self.rules[index].1) {
            Some(Some(route)) => guard(route, sent, path),
            // An upstream may read `/open/..;/payments` as another path, so an exempt path must be harmless. Under
            // `as-sent` the path must match exactly as it was sent.
            Some(None) if is_strict && path::is_harmless(sent) => Ruling::Passes,
            Some(None) if is_strict => ambiguous,
            Some(None) if find(sent) == rule => Ruling::Passes,
            _ if by_default => guard(&self.defaults, sent, path),
            // Some server could read this PUT or DELETE as one on a guarded route.
            _ if is_strict && (path::is_ambiguous(sent) || path::hides_separator(sent)) => ambiguous,
            _ => Ruling::Passes,
        }
    }

    /// Returns the route that guards this request; `None` if it passes untouched or is refused.
    pub fn find(&self, method: &Method, path: &str) -> Option<&Route> {
        match self.judge(method, path) {
            Ruling::Guarded { route, .. } => Some(route),
            Ruling::Passes | Ruling::Refused { .. } => None,
        }
    }

    /// Returns the policy of everything that no rule covers.
    pub fn defaults(&self) -> &Policy {
        &self.defaults.policy
    }

    /// Returns the pattern and profile of every guarded route, as metrics name them.
    pub(super) fn guarded_patterns(&self) -> impl Iterator<Item = (&Arc<str>, Profile)> {
        let routes = self.rules.iter().filter_map(|(_, route)| route.as_ref()).chain([&self.defaults]);
        routes.map(|route| (&route.pattern, route.policy.profile))
    }

    /// Returns the patterns of guarded routes on which keys are optional.
    pub(super) fn with_optional_keys(&self) -> impl Iterator<Item = &Arc<str>> {
        let routes = self.rules.iter().filter_map(|(_, route)| route.as_ref()).chain([&self.defaults]);
        routes.filter(|route| route.policy.key == KeyRule::Optional).map(|route| &route.pattern)
    }

    /// Returns the rules, in their order.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|(rule, _)| rule)
    }

    fn add(&mut self, mut rule: Rule) -> Result<(), RoutesError> {
        if let Some(policy) = &rule.policy {
            policy.check()?;
        }
        // A policy that exempts its route is the same as no policy, and is listed as such.
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
            // Stored with the record, because a later configuration may not have its route any more.
            if let Some(reconcile) = &mut policy.reconcile {
                reconcile.route.get_or_insert_with(|| rule.pattern.clone());
            }
            Route::new(Arc::from(rule.pattern.as_str()), Arc::new(policy), rule.reserved_by)
        });
        self.rules.push((rule, route));
        Ok(())
    }

    /// Lets each guarding rule match with and without a trailing slash, because many servers treat both as the same path. An
    /// exempt rule matches only as it is written.
    fn add_trailing_slashes(&mut self) {
        for (index, (rule, route)) in self.rules.iter().enumerate() {
            let Some(pattern) = path::other_trailing_slash(&path::normalized_pattern(&rule.pattern)) else {
                continue;
            };
            for method in rule.methods.iter().filter(|_| route.is_some()) {
                let router = self.by_method.entry(upper_case(method).into_owned()).or_default();
                // This fails only if another rule is written for this very path, and that one wins.
                let _ = router.insert(pattern.clone(), index);
            }
        }
    }
}

/// Returns the method in upper case: many servers read `patch` as PATCH.
pub(super) fn upper_case(method: &Method) -> Cow<'_, Method> {
    if !method.as_str().bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Cow::Borrowed(method);
    }
    let upper = method.as_str().to_ascii_uppercase();
    Cow::Owned(Method::from_bytes(upper.as_bytes()).expect("a method stays one in upper case"))
}

fn is_never_guarded(method: &Method) -> bool {
    let method = upper_case(method);
    // CONNECT has no path and no response to store, and the gateway refuses it.
    *method == Method::CONNECT || UNGUARDED_METHODS.contains(&method.as_str())
}

fn is_guarded_by_default(method: &Method) -> bool {
    !is_never_guarded(method) && !UNGUARDED_UNLESS_ROUTED.contains(method)
}

fn guard<'r, 'p>(route: &'r Arc<Route>, sent: &'p str, normalized: Cow<'p, str>) -> Ruling<'r, 'p> {
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

/// Methods that HTTP calls idempotent. They are guarded only by a rule, for APIs where they are not.
pub(super) const UNGUARDED_UNLESS_ROUTED: [Method; 2] = [Method::PUT, Method::DELETE];

/// Problem of a pattern under which no request can reach a strict route.
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

    /// Returns the ruling as text: pattern and scope, `passes`, or the refusal's code.
    fn judge(routes: &Routes, method: &str, path: &str) -> String {
        match routes.judge(&Method::from_bytes(method.as_bytes()).unwrap(), path) {
            Ruling::Guarded { route, path } => format!("{} {path}", route.pattern),
            Ruling::Passes => "passes".to_owned(),
            Ruling::Refused { refusal, .. } => refusal.code().to_owned(),
        }
    }

    fn check(routes: &Routes, cases: &[(&str, &str, &str)]) {
        for (method, path, expected) in cases {
            assert_eq!(judge(routes, method, path), *expected, "{method} {path}");
        }
    }

    fn guarding(methods: &[Method], pattern: &str) -> Rule {
        rule(methods, pattern, Some(Policy::default()))
    }

    #[test]
    fn every_method_is_guarded_but_the_five_safe_ones() {
        let routes = Routes::default();
        for method in ["POST", "PATCH", "post", "Post", "patch", "LOCK", "PURGE", "mkcol", "X"] {
            assert_eq!(judge(&routes, method, "/any"), "* /any", "{method}");
        }
        for method in ["GET", "HEAD", "OPTIONS", "TRACE", "QUERY", "PUT", "DELETE", "get", "Query", "delete"]
        {
            assert_eq!(judge(&routes, method, "/any"), "passes", "{method}");
        }
    }

    #[test]
    fn a_rule_can_guard_put_and_delete_or_exempt_a_path() {
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
                assert_eq!(judge(&routes, method, path), "path-ambiguous", "{method} {path}");
            }
            for method in ["GET", "HEAD", "DELETE"] {
                assert_eq!(judge(&routes, method, path), "passes", "{method} {path}");
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
            assert_eq!(judge(&routes, "PUT", &at("/orders/")), format!("/orders/{{id}} /orders/{scope}"));
            assert_eq!(judge(&routes, "POST", &at("/files/")), format!("* /files/{scope}"));
            assert_eq!(judge(&routes, "POST", &at("/open/")), "path-ambiguous");
            assert_eq!(judge(&routes, "PUT", &at("/files/")), "path-ambiguous");
            assert_eq!(judge(&routes, "DELETE", &at("/files/")), "passes", "no rule guards DELETE");
        }
    }

    #[test]
    fn an_exempt_rule_matches_harmless_paths_only() {
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
            assert_eq!(judge(&routes, "POST", path), "path-ambiguous", "{path}");
        }
        for path in
            ["/open/x", "/open/x/y/", "/open/ann@example.com", "/open/caf%C3%A9", "/%6fpen/x", "/login"]
        {
            assert_eq!(judge(&routes, "POST", path), "passes", "{path}");
        }
    }

    #[test]
    fn as_sent_uses_the_path_unchanged() {
        let as_sent = || Policy::default().with(|policy| policy.path = PathRule::AsSent);
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
            assert_eq!(judge(&routes, "POST", target), "target-invalid", "{target}");
            assert_eq!(judge(&routes, "OPTIONS", target), "passes", "{target}");
        }
    }

    #[test]
    fn a_path_over_two_kib_is_refused_where_it_would_be_guarded() {
        let (fits, long) = (format!("/{}", "a".repeat(2047)), format!("/{}", "a".repeat(2048)));
        let routes = Routes::default();
        assert_eq!(judge(&routes, "POST", &fits), format!("* {fits}"));
        assert_eq!(judge(&routes, "POST", &long), "path-too-long");
        assert_eq!(judge(&routes, "PUT", &long), "passes");
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
