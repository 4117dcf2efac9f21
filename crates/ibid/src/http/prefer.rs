//! The preferences of a client (RFC 7240): `wait=N`, how long it is willing to wait, and `respond-async`, that it would rather
//! not wait. Unknown preferences are ignored.

use std::time::Duration;

use http::HeaderMap;

/// Returns the `wait` preference, if it can be parsed. The first one counts.
pub(super) fn wait(headers: &HeaderMap) -> Option<Duration> {
    let (_, value) = preferences(headers).find(|(name, _)| name.eq_ignore_ascii_case("wait"))?;
    value.parse().ok().map(Duration::from_secs)
}

/// Returns whether the client prefers a 202 now to the response later. The preference takes no value; an empty value counts
/// as none.
pub(super) fn respond_async(headers: &HeaderMap) -> bool {
    preferences(headers).any(|(name, value)| name.eq_ignore_ascii_case("respond-async") && value.is_empty())
}

/// Returns name and value of each preference, without its parameters.
fn preferences(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let lines = headers.get_all("prefer").iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|preference| {
        let preference = preference.split_once(';').map_or(preference, |(preference, _)| preference);
        let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
        (name.trim(), value.trim().trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append("prefer", line.parse().unwrap());
        }
        wait(&headers).map(|wait| wait.as_secs())
    }

    #[test]
    fn wait_is_found_among_other_preferences() {
        assert_eq!(read(&["wait=2"]), Some(2));
        assert_eq!(read(&["respond-async, Wait = \"10\"; x=1"]), Some(10));
        assert_eq!(read(&["return=minimal", "wait=0"]), Some(0));
        assert_eq!(read(&["wait=1, wait=9"]), Some(1));
    }

    #[test]
    fn respond_async_is_found_among_other_preferences() {
        let asks = |line: &str| {
            let mut headers = HeaderMap::new();
            headers.append("prefer", line.parse().unwrap());
            respond_async(&headers)
        };
        for line in ["respond-async", "wait=10, Respond-Async", "respond-async; x=1", "respond-async=\"\""] {
            assert!(asks(line), "{line}");
        }
        for line in ["wait=10", "respond-asynchronously", "respond-async=no", "x=respond-async"] {
            assert!(!asks(line), "{line}");
        }
    }

    #[test]
    fn unreadable_preferences_are_ignored() {
        for line in ["foo", "wait", "wait=-1", "wait=soon", "waiting=3", "wait=99999999999999999999999"] {
            assert_eq!(read(&[line]), None, "{line}");
        }
        assert_eq!(read(&[]), None);
    }
}
