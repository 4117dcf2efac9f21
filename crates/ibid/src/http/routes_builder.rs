//! A builder for [`Routes`]: one line per route.

use http::Method;
use ibid_core::policy::Policy;

use super::routes::{ReservedBy, Routes, RoutesError, Rule};

/// Collects the rules of [`Routes`].
///
/// Patterns are written as in axum: `{name}` matches one segment, `{*rest}` the rest of the path.
///
/// ```
/// use ibid::prelude::*;
///
/// let routes = Routes::builder()
///     .post("/payments", Policy::payments())
///     .put("/customers/{id}", Policy::default())
///     .exempt("/search")
///     .build()?;
/// # Ok::<_, ibid::http::RoutesError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "routes take effect once they are built and given to the layer"]
pub struct RoutesBuilder {
    default_policy: Policy,
    rules: Vec<Rule>,
}

impl Routes {
    /// Starts with no rules: every request that is guarded by default is reserved under the default policy.
    pub fn builder() -> RoutesBuilder {
        RoutesBuilder::default()
    }
}

impl RoutesBuilder {
    /// Sets the policy of guarded requests that no rule covers.
    pub fn default_policy(self, policy: Policy) -> RoutesBuilder {
        RoutesBuilder { default_policy: policy, ..self }
    }

    /// Guards POST requests to these paths with this policy.
    pub fn post(self, pattern: &str, policy: Policy) -> RoutesBuilder {
        self.guard(Method::POST, pattern, policy)
    }

    /// Guards PATCH requests to these paths with this policy.
    pub fn patch(self, pattern: &str, policy: Policy) -> RoutesBuilder {
        self.guard(Method::PATCH, pattern, policy)
    }

    /// Guards PUT requests to these paths with this policy. Without a rule they pass.
    pub fn put(self, pattern: &str, policy: Policy) -> RoutesBuilder {
        self.guard(Method::PUT, pattern, policy)
    }

    /// Guards DELETE requests to these paths with this policy. Without a rule they pass.
    pub fn delete(self, pattern: &str, policy: Policy) -> RoutesBuilder {
        self.guard(Method::DELETE, pattern, policy)
    }

    /// Guards POST requests to these paths, whose handlers reserve the key in their own transaction
    /// ([`UnreservedRequest`](super::UnreservedRequest)).
    pub fn post_unreserved(self, pattern: &str, policy: Policy) -> RoutesBuilder {
        let rule =
            Rule { reserved_by: ReservedBy::Handler, ..rule(vec![Method::POST], pattern, Some(policy)) };
        self.rule(rule)
    }

    /// Lets POST and PATCH requests to these paths pass unguarded.
    pub fn exempt(self, pattern: &str) -> RoutesBuilder {
        self.rule(rule(vec![Method::POST, Method::PATCH], pattern, None))
    }

    /// Adds any other rule.
    pub fn rule(mut self, rule: Rule) -> RoutesBuilder {
        self.rules.push(rule);
        self
    }

    /// Checks the rules and builds the routes.
    ///
    /// # Errors
    ///
    /// If a policy contradicts itself, or a pattern is wrong or covers the paths of another rule.
    pub fn build(self) -> Result<Routes, RoutesError> {
        Routes::new(self.default_policy, self.rules)
    }

    fn guard(self, method: Method, pattern: &str, policy: Policy) -> RoutesBuilder {
        self.rule(rule(vec![method], pattern, Some(policy)))
    }
}

fn rule(methods: Vec<Method>, pattern: &str, policy: Option<Policy>) -> Rule {
    Rule { methods, pattern: pattern.to_owned(), policy, reserved_by: ReservedBy::Layer }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_builder_is_a_rule() {
        let routes = Routes::builder()
            .default_policy(Policy::one_transaction())
            .post("/payments", Policy::payments())
            .put("/customers/{id}", Policy::default())
            .post_unreserved("/names", Policy::one_transaction())
            .exempt("/search")
            .build()
            .unwrap();
        let route_of =
            |method, path| routes.find(&method, path).map(|route| (&*route.pattern, route.reserved_by));
        assert_eq!(route_of(Method::POST, "/payments"), Some(("/payments", ReservedBy::Layer)));
        assert_eq!(route_of(Method::PUT, "/customers/7"), Some(("/customers/{id}", ReservedBy::Layer)));
        assert_eq!(route_of(Method::DELETE, "/customers/7"), None);
        assert_eq!(route_of(Method::POST, "/names"), Some(("/names", ReservedBy::Handler)));
        assert_eq!(route_of(Method::POST, "/search"), None);
        assert_eq!(route_of(Method::PATCH, "/search"), None);
        assert_eq!(route_of(Method::POST, "/else"), Some(("*", ReservedBy::Layer)));
        assert_eq!(*routes.defaults(), Policy::one_transaction());
    }

    #[test]
    fn two_rules_for_the_same_paths_are_refused() {
        let twice = Routes::builder().post("/x/{a}", Policy::default()).exempt("/x/{b}");
        assert!(matches!(twice.build(), Err(RoutesError::Pattern { .. })));
    }
}
