//! The filter of an operator's list. The store itself tests every part of it, so that a page is as full as it can be.

use std::time::Duration;

use crate::record::{Record, State};
use crate::scope::IdPrefix;
use crate::store::Cursor;
use crate::time::Timestamp;

/// The records to list. Every part that is set must match.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordFilter {
    /// Only records in this state.
    pub state: Option<State>,
    /// Only records of this tenant.
    pub tenant: Option<String>,
    /// Only records with this key.
    pub key: Option<String>,
    /// Only requests with this method, in upper case.
    pub method: Option<String>,
    /// Only requests to these paths.
    pub path: Option<PathPattern>,
    /// Only dead letters: records that an operator must look at.
    pub dead_letter: bool,
    /// Only records whose first request came at this instant or later.
    pub created_from: Option<Timestamp>,
    /// Only records whose first request came before this instant.
    pub created_before: Option<Timestamp>,
    /// Only records whose first request came longer ago than this, by the store's clock.
    pub older_than: Option<Duration>,
    /// Only ids with this prefix.
    pub prefix: Option<IdPrefix>,
    /// Continue behind the page that ended with this cursor.
    pub after: Option<Cursor>,
    /// Largest number of records in a page.
    pub limit: u32,
}

impl Default for RecordFilter {
    fn default() -> Self {
        RecordFilter {
            state: None,
            tenant: None,
            key: None,
            method: None,
            path: None,
            dead_letter: false,
            created_from: None,
            created_before: None,
            older_than: None,
            prefix: None,
            after: None,
            // A screenful or two; an operator reads the list, and the cursor gets the rest.
            limit: 100,
        }
    }
}

impl RecordFilter {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut RecordFilter)) -> RecordFilter {
        change(&mut self);
        self
    }

    /// Returns the instant before which the first request must have come, at the store's `now`.
    pub fn before(&self, now: Timestamp) -> Option<Timestamp> {
        let young = self.older_than.map(|age| {
            let micros = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
            Timestamp::from_micros(now.as_micros().saturating_sub(micros))
        });
        [self.created_before, young].into_iter().flatten().min()
    }

    /// Returns whether the record matches, apart from prefix, cursor and limit: for a store without a query language.
    pub fn fits(&self, record: &Record, now: Timestamp) -> bool {
        let identity = &record.identity;
        self.state.is_none_or(|state| record.state == state)
            && self.tenant.as_deref().is_none_or(|tenant| identity.tenant.as_str() == tenant)
            && self.key.as_deref().is_none_or(|key| identity.key.as_str() == key)
            && self.method.as_deref().is_none_or(|method| &*identity.operation.method == method)
            && self.path.as_ref().is_none_or(|path| path.fits(&identity.operation.path))
            && (!self.dead_letter || record.flags.dead_letter)
            && self.created_from.is_none_or(|from| record.created_at >= from)
            && self.before(now).is_none_or(|before| record.created_at < before)
    }
}

/// One path, or all paths that a route's pattern matches.
///
/// A segment `{name}` matches one segment, a last segment `{*rest}` all that follow; any other text matches itself. If the
/// pattern ends with `{*rest}`, a `{name}` before it may match several segments, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    parts: Vec<PathPart>,
    /// Number of slashes in a path; `None`: at least as many as in the pattern.
    slashes: Option<u32>,
}

/// A piece of a [`PathPattern`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPart {
    /// Exactly these characters, in order.
    Text(String),
    /// At least one character.
    Some,
}

impl PathPattern {
    /// Creates a pattern that matches only this path.
    pub fn of_path(path: &str) -> PathPattern {
        PathPattern { parts: vec![PathPart::Text(path.to_owned())], slashes: None }
    }

    /// Creates a pattern that matches what a route's pattern matches.
    pub fn of_route(pattern: &str) -> PathPattern {
        let mut parts = Vec::new();
        let mut text = String::new();
        let last = pattern.split('/').count() - 1;
        let mut rest = false;
        for (index, segment) in pattern.split('/').enumerate() {
            if index > 0 {
                text.push('/');
            }
            let name = segment.strip_prefix('{').and_then(|inner| inner.strip_suffix('}'));
            match name {
                Some(name) if !name.is_empty() && (!name.starts_with('*') || index == last) => {
                    rest |= name.starts_with('*');
                    if !text.is_empty() {
                        parts.push(PathPart::Text(std::mem::take(&mut text)));
                    }
                    parts.push(PathPart::Some);
                }
                _ => text.push_str(segment),
            }
        }
        if !text.is_empty() || parts.is_empty() {
            parts.push(PathPart::Text(text));
        }
        // A longer pattern than the longest request line fits no path.
        let slashes = u32::try_from(last).unwrap_or(u32::MAX);
        PathPattern { slashes: (!rest).then_some(slashes), parts }
    }

    /// Returns the pieces, in order, for a store to translate into its query language.
    pub fn parts(&self) -> &[PathPart] {
        &self.parts
    }

    /// Returns the number of slashes that a path must have; `None`: any number.
    pub fn slashes(&self) -> Option<u32> {
        self.slashes
    }

    /// Returns whether the pattern matches this path.
    pub fn fits(&self, path: &str) -> bool {
        let counted = self.slashes.is_none_or(|slashes| path.matches('/').count() == slashes as usize);
        counted && fits(&self.parts, path)
    }
}

/// Depth is bounded by the parts of the pattern.
fn fits(parts: &[PathPart], path: &str) -> bool {
    match parts.split_first() {
        None => path.is_empty(),
        Some((PathPart::Text(text), rest)) => {
            path.strip_prefix(text.as_str()).is_some_and(|after| fits(rest, after))
        }
        Some((PathPart::Some, rest)) => {
            let mut ends = path.char_indices().map(|(at, char)| at + char.len_utf8());
            ends.any(|end| fits(rest, &path[end..]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_pattern_matches_what_the_route_does() {
        let cases = [
            ("/payments", "/payments", true),
            ("/payments", "/payments/", false),
            ("/payments/{id}", "/payments/7", true),
            ("/payments/{id}", "/payments/", false),
            ("/payments/{id}", "/payments/7/refund", false),
            ("/payments/{id}/refund", "/payments/7/refund", true),
            ("/payments/{id}/refund", "/payments/a/b/refund", false),
            ("/a/{*rest}", "/a/b/c", true),
            ("/a/{*rest}", "/a/", false),
            ("/a/{*rest}", "/b/c", false),
            ("/x%_*?[a]/{id}", "/x%_*?[a]/ü", true),
            ("/x%/{id}", "/xy/1", false),
            ("/{}/b", "/{}/b", true),
            ("/{*not}/last", "/{*not}/last", true),
        ];
        for (pattern, path, fits) in cases {
            assert_eq!(PathPattern::of_route(pattern).fits(path), fits, "{pattern} {path}");
        }
        assert!(PathPattern::of_path("/a/{id}").fits("/a/{id}"), "a path has no wildcards");
        assert!(!PathPattern::of_path("/a/{id}").fits("/a/7"));
    }
}
