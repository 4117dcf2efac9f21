//! `Prefer: wait=N` (RFC 7240): how long the client itself is willing to wait. Unknown preferences are ignored.

use std::time::Duration;

use http::HeaderMap;

/// The `wait` preference, if one is given that can be read. The first counts.
pub(super) fn wait(headers: &HeaderMap) -> Option<Duration> {
    headers
        .get_all("prefer")
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .filter_map(|preference| {
            let (name, value) = preference.split(';').next()?.split_once('=')?;
            name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().trim_matches('"').parse().ok())
        })
        .next()?
        .map(Duration::from_secs)
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
    fn the_wait_preference_is_found_among_others() {
        assert_eq!(read(&["wait=2"]), Some(2));
        assert_eq!(read(&["respond-async, Wait = \"10\"; x=1"]), Some(10));
        assert_eq!(read(&["return=minimal", "wait=0"]), Some(0));
        assert_eq!(read(&["wait=1, wait=9"]), Some(1));
    }

    #[test]
    fn what_can_not_be_read_is_ignored() {
        for line in ["foo", "wait", "wait=-1", "wait=soon", "waiting=3", "wait=99999999999999999999999"] {
            assert_eq!(read(&[line]), None, "{line}");
        }
        assert_eq!(read(&[]), None);
    }
}
