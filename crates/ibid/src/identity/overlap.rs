//! Decides whether two routes can match the same path. In doubt it says yes: a false difference costs an operator a
//! question, a missed one costs a second execution.

/// Returns whether some path of one route (`METHOD /pattern`) may be a path of the other.
pub(super) fn overlaps(one: &str, other: &str) -> bool {
    let (Some((method, one)), Some((same, other))) = (one.split_once(' '), other.split_once(' ')) else {
        return true;
    };
    if method != same {
        return false;
    }
    let (mut one, mut other) = (segments(one), segments(other));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(rest), _) | (_, Some(rest)) if is_rest(rest) => return true,
            (Some(a), Some(b)) if a == b || is_variable(a) || is_variable(b) => {}
            _ => return false,
        }
    }
}

/// Returns whether every path of `part` is a path of `whole`. In doubt it says no.
pub(super) fn covers(whole: &str, part: &str) -> bool {
    let (Some((method, whole)), Some((same, part))) = (whole.split_once(' '), part.split_once(' ')) else {
        return false;
    };
    if method != same {
        return false;
    }
    let (mut whole, mut part) = (segments(whole), segments(part));
    loop {
        match (whole.next(), part.next()) {
            (None, None) => return true,
            (Some(rest), Some(_)) if is_rest(rest) => return true,
            (Some(a), Some(b)) if a == b || (is_whole_variable(a) && !is_rest(b)) => {}
            _ => return false,
        }
    }
}

/// Returns the segments of a pattern, without a trailing slash: a guarded route matches with and without one.
fn segments(pattern: &str) -> impl Iterator<Item = &str> {
    pattern.strip_suffix('/').unwrap_or(pattern).split('/')
}

fn is_variable(segment: &str) -> bool {
    segment.contains('{')
}

/// Returns whether the segment is `{name}` with nothing around it.
fn is_whole_variable(segment: &str) -> bool {
    segment.starts_with('{') && segment.ends_with('}') && !is_rest(segment)
}

fn is_rest(segment: &str) -> bool {
    segment.contains("{*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_that_may_share_a_path_overlap() {
        for (one, other, shares, has_all) in [
            ("POST /a", "POST /a", true, true),
            ("POST /a", "POST /a/", true, true),
            ("POST /a", "PUT /a", false, false),
            ("POST /{id}", "POST /a", true, true),
            ("POST /a", "POST /{id}", true, false),
            ("POST /{id}", "POST /a/b", false, false),
            ("POST /{*rest}", "POST /a/b", true, true),
            ("POST /{id}", "POST /{*rest}", true, false),
            ("POST /x/{id}", "POST /{id}/y", true, false),
            ("POST /v{n}", "POST /v1", true, false),
            ("POST /a/b", "POST /a/c", false, false),
        ] {
            assert_eq!(overlaps(one, other), shares, "{one} and {other}");
            assert_eq!(overlaps(other, one), shares, "{other} and {one}");
            assert_eq!(covers(one, other), has_all, "{one} covers {other}");
        }
    }
}
