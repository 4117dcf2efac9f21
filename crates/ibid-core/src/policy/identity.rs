//! The fields of a policy that determine a record's id.
//!
//! A field that is added here is compared when a process starts, stored with the identity, and used to find records of
//! a previous identity.

use std::borrow::Cow;

use super::{BindRule, PathRule, Policy};
use crate::key::Key;
use crate::key_source::KeyFrom;
use crate::path;
use crate::scope::ScopeRule;

/// The rules of one route that decide under which id a request finds its record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdentityRules {
    /// Reach of one key: the operation or the whole tenant.
    pub scope: ScopeRule,
    /// Owner of a key within the tenant.
    pub bind: BindRule,
    /// Reading of the path for the scope.
    pub path: PathRule,
    /// Places where a request may carry its key.
    pub key_from: KeyFrom,
}

/// A stored field of an identity that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field} = {value}` is not known here")]
pub struct IdentityFieldError {
    /// Name of the field.
    pub field: String,
    /// Value that is not known.
    pub value: String,
}

impl Policy {
    /// Returns the fields of this policy that go into a record's id.
    pub fn identity(&self) -> IdentityRules {
        IdentityRules { scope: self.scope, bind: self.bind, path: self.path, key_from: self.key_from.clone() }
    }
}

impl IdentityRules {
    /// Returns each field with its value, in the words of a configuration.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let scope = match self.scope {
            ScopeRule::Operation => "operation",
            ScopeRule::Tenant => "tenant",
        };
        let bind = match self.bind {
            BindRule::Tenant => "tenant",
            BindRule::Principal => "principal",
        };
        let path = match self.path {
            PathRule::Strict => "strict",
            PathRule::AsSent => "as-sent",
        };
        let key_from: Vec<String> = self.key_from.sources().iter().map(ToString::to_string).collect();
        vec![
            ("scope", scope.to_owned()),
            ("bind", bind.to_owned()),
            ("path", path.to_owned()),
            ("key_from", key_from.join(BETWEEN_SOURCES)),
        ]
    }

    /// Returns the path as it goes into the id, from the path as it was sent.
    pub fn path_of_scope<'p>(&self, sent: &'p str) -> Cow<'p, str> {
        match self.path {
            PathRule::Strict => path::normalize(sent),
            PathRule::AsSent => Cow::Borrowed(sent),
        }
    }

    /// Returns the key as it goes into the id ([`Policy::compared_key`]).
    pub fn compared_key(&self, key: Key) -> Key {
        self.key_from.normalize_key(key)
    }

    /// Parses what [`IdentityRules::fields`] wrote. A missing field has its default.
    ///
    /// # Errors
    ///
    /// Fails if a newer version wrote the field or value: without it the id cannot be computed.
    pub fn parse<'t>(
        fields: impl IntoIterator<Item = (&'t str, &'t str)>,
    ) -> Result<IdentityRules, IdentityFieldError> {
        let mut rules = IdentityRules::default();
        for (field, value) in fields {
            match (field, value) {
                ("scope", "operation") => rules.scope = ScopeRule::Operation,
                ("scope", "tenant") => rules.scope = ScopeRule::Tenant,
                ("bind", "tenant") => rules.bind = BindRule::Tenant,
                ("bind", "principal") => rules.bind = BindRule::Principal,
                ("path", "strict") => rules.path = PathRule::Strict,
                ("path", "as-sent") => rules.path = PathRule::AsSent,
                ("key_from", sources) => {
                    let parsed = KeyFrom::parse(sources.split(BETWEEN_SOURCES));
                    rules.key_from = parsed.map_err(|_| unknown(field, value))?;
                }
                _ => return Err(unknown(field, value)),
            }
        }
        Ok(rules)
    }
}

fn unknown(field: &str, value: &str) -> IdentityFieldError {
    IdentityFieldError { field: field.to_owned(), value: value.to_owned() }
}

/// Separator between two key sources.
///
/// No header name contains it. A JSON pointer that does is read as two sources; then a start with the same
/// configuration is refused rather than let through.
const BETWEEN_SOURCES: &str = ", ";

impl Default for IdentityRules {
    fn default() -> IdentityRules {
        Policy::default().identity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_back_as_they_were_written() {
        let other = Policy {
            scope: ScopeRule::Tenant,
            bind: BindRule::Principal,
            path: PathRule::AsSent,
            key_from: KeyFrom::parse(["header:PayPal-Request-Id", "body:/key"]).unwrap(),
            ..Policy::default()
        };
        for rules in [Policy::default().identity(), other.identity()] {
            let fields = rules.fields();
            let texts = fields.iter().map(|(field, value)| (*field, value.as_str()));
            assert_eq!(IdentityRules::parse(texts), Ok(rules.clone()));
        }
        assert_eq!(IdentityRules::parse([]), Ok(IdentityRules::default()));
        assert!(IdentityRules::parse([("scope", "planet")]).is_err());
        assert!(IdentityRules::parse([("key_from", "moon")]).is_err());
        assert!(IdentityRules::parse([("moon", "full")]).is_err());
    }
}
