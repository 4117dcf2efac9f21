//! Reads a request's path: the spelling that names its scope, and whether all servers read it alike.
//!
//! Every function takes the path as it was sent, without its query, and is pure. If two servers read a path
//! differently, a client could leave its route, or run one key once per spelling.

use std::borrow::Cow;

/// Returns the spelling under which a path is matched and scoped.
///
/// Percent-encoded unreserved characters are decoded (RFC 3986, 6.2.2.2), and the hex digits of the remaining escapes
/// are in upper case (6.2.2.1).
pub fn normalize(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        rest = after;
        match escape(after.as_bytes()) {
            Some(byte) if is_unreserved(byte) => out.push(char::from(byte)),
            Some(_) => {
                out.push('%');
                out.push_str(&after[..2].to_ascii_uppercase());
            }
            // A malformed escape stays as it is: strict routes refuse it, and the others take the path as sent.
            None => {
                out.push('%');
                continue;
            }
        }
        rest = &after[2..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Returns a route's pattern as normalized paths are matched against it: characters outside ASCII are percent-encoded,
/// except in the names.
pub fn normalized_pattern(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut in_name = false;
    for c in pattern.chars() {
        in_name = c == '{' || (in_name && c != '}');
        match c.is_ascii() || in_name {
            true => out.push(c),
            false => {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| out.push_str(&format!("%{byte:02X}")))
            }
        }
    }
    normalize(&out).into_owned()
}

/// Returns whether some path that a strict route accepts can match this pattern. An exempt route accepts harmless paths
/// only.
pub fn is_reachable(pattern: &str, is_exempt: bool) -> bool {
    let pattern = normalized_pattern(pattern);
    let mut parts = pattern.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    let sample =
        parts.fold(first, |path, part| path + "x" + part.split_once('}').map_or("", |(_, after)| after));
    if is_exempt { is_harmless(&sample) } else { !is_ambiguous(&sample) }
}

/// Returns a normalized path without the parameters of its segments (`;x=1`), which servlet containers drop before they
/// choose a handler. `None` if it has none.
pub fn without_parameters(path: &str) -> Option<String> {
    // Nearly every path has neither.
    if !path.bytes().any(|byte| matches!(byte, b';' | b'%')) {
        return None;
    }
    let cut = |segment: &str| -> usize {
        [";", "%3B"].iter().filter_map(|mark| segment.find(mark)).min().unwrap_or(segment.len())
    };
    let segments: Vec<&str> = path.split('/').map(|segment| &segment[..cut(segment)]).collect();
    let stripped = segments.join("/");
    (stripped.len() < path.len()).then_some(stripped)
}

/// Returns whether servers read this path differently.
///
/// Ambiguous are: empty segments before the last one; dot segments in any encoding or with parameters; control
/// characters; escapes that are malformed or not UTF-8; raw bytes outside ASCII; and escapes nested deeper than
/// [`DECODE_ROUNDS_MAX`].
pub fn is_ambiguous(path: &str) -> bool {
    if path.bytes().any(|byte| !(0x20..0x7f).contains(&byte)) {
        return true;
    }
    let mut segments = path.strip_prefix('/').unwrap_or(path).split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        if (segment.is_empty() && !is_last) || is_ambiguous_segment(segment, is_last) {
            return true;
        }
    }
    false
}

/// Returns whether a segment holds a slash or backslash that some servers take for a separator: `%2F`, `%5C` or `\`,
/// however often encoded.
pub fn hides_separator(path: &str) -> bool {
    let mut is_sent = true;
    for_each_decoding(path, |text| {
        // The path's own slashes separate its segments; one that appears by decoding was hidden.
        let slashes = |text: &[u8]| text.iter().filter(|byte| **byte == b'/').count();
        let hidden = text.contains(&b'\\') || (!is_sent && slashes(text) > slashes(path.as_bytes()));
        is_sent = false;
        hidden
    })
}

/// Returns whether every server reads this path as it is written, so that an exempt route may let it pass.
///
/// This is an allow-list, because a list of known tricks would have to know every server. A segment consists of
/// unreserved characters and sub-delimiters without `;`. An escape must decode, once, to one of these, to a letter or
/// digit of any script, or to a space inside the segment. No segment is `.` or begins with `..`, and none but the last
/// is empty.
pub fn is_harmless(path: &str) -> bool {
    let Some(path) = path.strip_prefix('/') else { return false };
    let mut segments = path.split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        if (segment.is_empty() && !is_last) || !is_harmless_segment(segment) {
            return false;
        }
    }
    true
}

/// Returns a path or pattern with its trailing slash removed, or with one added. `None` for `/`, and for a pattern that
/// ends with `{*rest}`, which covers both already.
pub fn other_trailing_slash(path: &str) -> Option<String> {
    match path.strip_suffix('/') {
        Some("") => None,
        Some(without) => Some(without.to_owned()),
        None if path.rsplit('/').next().is_some_and(|last| last.starts_with("{*")) => None,
        None => Some(format!("{path}/")),
    }
}

fn is_ambiguous_segment(segment: &str, is_last: bool) -> bool {
    if !segment.contains(['%', '.', ';']) {
        return false;
    }
    let Some(once) = decode_strictly(segment) else { return true };
    let Ok(text) = std::str::from_utf8(&once) else { return true };
    if text.chars().any(char::is_control) {
        return true;
    }
    for_each_decoding(segment, |text| {
        let text = String::from_utf8_lossy(text);
        // Without its parameters `;x` is empty, and servers merge empty segments.
        let is_empty = text.starts_with(';') && !is_last;
        is_empty || text.split(['/', '\\']).any(|part| matches!(cut_parameters(part).trim(), "." | ".."))
    })
}

fn is_harmless_segment(segment: &str) -> bool {
    let Some(once) = decode_strictly(segment) else { return false };
    let Ok(text) = std::str::from_utf8(&once) else { return false };
    let is_plain = |c: char| c.is_ascii() && (is_unreserved(c as u8) || "!$&'()*+,=:@".contains(c));
    segment.chars().all(|c| is_plain(c) || c == '%')
        && text.chars().all(|c| is_plain(c) || (!c.is_ascii() && c.is_alphanumeric()) || c == ' ')
        && text.trim() == text
        && text != "."
        && !text.starts_with("..")
}

/// Calls `check` with the text as sent and after each round of percent-decoding.
///
/// Returns `true` if `check` does, or if there is more to decode after [`DECODE_ROUNDS_MAX`] rounds; `false` once
/// nothing is left to decode.
fn for_each_decoding(text: &str, mut check: impl FnMut(&[u8]) -> bool) -> bool {
    let mut text = Cow::Borrowed(text.as_bytes());
    for _ in 0..=DECODE_ROUNDS_MAX {
        if check(&text) {
            return true;
        }
        match decode_leniently(&text) {
            Some(next) => text = Cow::Owned(next),
            None => return false,
        }
    }
    true
}

/// Decodes every escape; `None` if one is malformed.
fn decode_strictly(text: &str) -> Option<Cow<'_, [u8]>> {
    let bytes = text.as_bytes();
    if !bytes.contains(&b'%') {
        return Some(Cow::Borrowed(bytes));
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        if *byte == b'%' {
            out.push(escape(&bytes[at + 1..])?);
            at += 3;
        } else {
            out.push(*byte);
            at += 1;
        }
    }
    Some(Cow::Owned(out))
}

/// Decodes every well-formed escape and leaves the others; `None` if there is no well-formed one.
fn decode_leniently(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match escape(&bytes[at + 1..]).filter(|_| *byte == b'%') {
            Some(decoded) => {
                out.push(decoded);
                at += 3;
            }
            None => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    (out.len() < bytes.len()).then_some(out)
}

/// Returns the byte that two hex digits name.
fn escape(digits: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}

fn cut_parameters(segment: &str) -> &str {
    segment.split(';').next().unwrap_or_default()
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Longest path of a guarded request, in bytes. Every record stores the path. Common servers limit the whole request
/// line to 8 KiB, and the paths of APIs stay below a few hundred bytes.
pub const PATH_BYTES_MAX: usize = 2048;

/// Number of times that a path is percent-decoded in search of dot segments. One server decodes once, two in a chain
/// decode twice. Without a bound, `%252525…` would cost time quadratic in its length.
pub const DECODE_ROUNDS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreserved_characters_are_decoded_and_nothing_else() {
        for (sent, read) in [
            ("/payments", "/payments"),
            ("/%70ayments", "/payments"),
            ("/%7Euser/%2D%5F%2e", "/~user/-_."),
            ("/a%2fb", "/a%2Fb"),
            ("/caf%c3%A9", "/caf%C3%A9"),
            ("/a%20b%3B%25", "/a%20b%3B%25"),
            // Decoded once: the result is not decoded again.
            ("/%2541", "/%2541"),
            ("/100%", "/100%"),
            ("/%zz%6", "/%zz%6"),
            ("/%é%70", "/%ép"),
            ("/payments/", "/payments/"),
        ] {
            assert_eq!(normalize(sent), read, "{sent}");
        }
    }

    #[test]
    fn every_unreserved_character_has_one_spelling_of_its_scope() {
        for byte in 0u8..=255 {
            let (lower, upper) = (format!("/a%{byte:02x}b"), format!("/a%{byte:02X}b"));
            assert_eq!(normalize(&lower), normalize(&upper));
            let is_decoded = !normalize(&lower).contains('%');
            assert_eq!(is_decoded, byte.is_ascii_alphanumeric() || b"-._~".contains(&byte), "{byte}");
        }
    }

    #[test]
    fn a_pattern_is_normalized_outside_its_names() {
        let patterns = [
            ("/%6frders/{id}", "/orders/{id}"),
            ("/caf\u{e9}/{gr\u{f6}\u{df}e}", "/caf%C3%A9/{gr\u{f6}\u{df}e}"),
        ];
        for (written, read) in patterns {
            assert_eq!(normalized_pattern(written), read);
        }
        for (pattern, guarding, exempt) in [
            ("/orders/{id}/{*rest}", true, true),
            ("/caf\u{e9}/{gr\u{f6}\u{df}e}", true, true),
            ("/a;b/{id}", true, false),
            ("/a//{id}", false, false),
            ("/a/../{id}", false, false),
            ("/a/%zz", false, false),
        ] {
            assert_eq!(
                (is_reachable(pattern, false), is_reachable(pattern, true)),
                (guarding, exempt),
                "{pattern}"
            );
        }
    }

    #[test]
    fn ambiguous_paths_are_distinguished_from_plain_ones() {
        for path in AMBIGUOUS {
            assert!(is_ambiguous(path), "{path} is ambiguous");
            assert!(!is_harmless(path), "{path} is not harmless");
        }
        for path in PLAIN.iter().chain(&HIDING).chain(&ODD) {
            assert!(!is_ambiguous(path), "{path} is not ambiguous");
        }
    }

    #[test]
    fn a_hidden_separator_is_found_however_it_is_encoded() {
        for path in HIDING {
            assert!(hides_separator(path), "{path}");
            assert!(!is_harmless(path), "{path}");
        }
        for path in PLAIN.iter().chain(&ODD) {
            assert!(!hides_separator(path), "{path}");
        }
    }

    #[test]
    fn only_harmless_segments_may_be_exempt() {
        for path in PLAIN {
            assert!(is_harmless(path), "{path}");
        }
        for path in ODD {
            assert!(!is_harmless(path), "{path}");
        }
    }

    #[test]
    fn a_path_of_nested_escapes_is_read_in_bounded_time() {
        let nested = format!("/%{}2e", "25".repeat(30_000));
        assert!(is_ambiguous(&nested), "more rounds than any server makes");
        assert!(hides_separator(&nested));
    }

    #[test]
    fn parameters_are_cut_off_every_segment() {
        for (path, without) in [
            ("/orders;x=1/1", Some("/orders/1")),
            ("/orders/1;a;b", Some("/orders/1")),
            ("/orders%3Bx/1%3B;", Some("/orders/1")),
            ("/orders/1", None),
        ] {
            assert_eq!(without_parameters(path).as_deref(), without, "{path}");
        }
    }

    /// Returns the readings of servers that represent all others: whether escapes are decoded once or twice, before or
    /// after parameters are cut off, and whether a backslash is a slash. The test then merges slashes and resolves dot
    /// segments.
    fn readings(path: &str) -> Vec<String> {
        let decoded = |path: &str| {
            let bytes = decode_leniently(path.as_bytes());
            bytes.map_or(path.to_owned(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        let cut = |path: &str| path.split('/').map(cut_parameters).collect::<Vec<_>>().join("/");
        let once = decoded(path);
        let twice = decoded(&once);
        let slashed = twice.replace('\\', "/");
        vec![
            cut(path),
            decoded(&cut(path)),
            cut(&once),
            cut(&twice),
            cut(&slashed),
            path.to_owned(),
            once,
            twice,
            slashed,
        ]
    }

    fn merged_and_resolved(path: &str) -> String {
        let mut out: Vec<&str> = Vec::new();
        for segment in path.split('/') {
            match segment {
                "" | "." => {}
                ".." => drop(out.pop()),
                segment => out.push(segment),
            }
        }
        let slash = if path.ends_with('/') && !out.is_empty() { "/" } else { "" };
        format!("/{}{slash}", out.join("/"))
    }

    /// Checks every path of up to four of these pieces: a path that passes keeps its segments in every reading, and in
    /// a guarded path no segment moves.
    #[test]
    fn no_server_reads_another_path_into_one_that_passes() {
        let pieces = ["/", ".", ";", "a", "\\", "%2e", "%2F", "%25", "%5c", "2e", "%3b"];
        let mut paths = vec!["/".to_owned(), "/a/".to_owned()];
        let mut from = 0;
        for _ in 0..4 {
            let to = paths.len();
            for at in from..to {
                paths.extend(pieces.iter().map(|piece| format!("{}{piece}", paths[at])).collect::<Vec<_>>());
            }
            from = to;
        }
        let (mut passing, mut harmless) = (0, 0);
        for path in &paths {
            if is_ambiguous(path) {
                assert!(!is_harmless(path), "{path}");
                continue;
            }
            if is_harmless(path) {
                harmless += 1;
                let plain = decode_strictly(path).unwrap();
                assert!(
                    readings(path).iter().all(|reading| reading.as_bytes() == &*plain || reading == path),
                    "{path}"
                );
            }
            if !hides_separator(path) {
                passing += 1;
                for reading in readings(path) {
                    // The last segment may be empty without its parameters: a trailing slash.
                    assert_eq!(merged_and_resolved(&reading), reading, "{path} read as {reading}");
                    assert_eq!(
                        reading.matches('/').count(),
                        path.matches('/').count(),
                        "{path} read as {reading}"
                    );
                }
            }
        }
        assert!(harmless > 500 && passing > harmless, "{harmless} of {passing}");
    }

    #[test]
    fn a_trailing_slash_is_added_or_taken_off() {
        for (path, other) in [
            ("/a", Some("/a/")),
            ("/a/", Some("/a")),
            ("/a/{id}", Some("/a/{id}/")),
            ("/", None),
            ("/a/{*rest}", None),
        ] {
            assert_eq!(other_trailing_slash(path).as_deref(), other, "{path}");
        }
    }

    const PLAIN: [&str; 16] = [
        "/",
        "/payments",
        "/payments/",
        "/orders/1",
        "/a.b/.well-known/x..y",
        "/v1/users/ann@example.com",
        "/v1/users/ann%40example.com",
        "/a:cancel",
        "/a,b=c'(d)*+!$&",
        "/%70ayments",
        "/caf%C3%A9",
        "/%E6%94%AF%E6%89%95",
        "/a%20b",
        "/~user/-_",
        "/a...",
        "/%2ehidden",
    ];

    /// Paths that are allowed if the request is guarded, and refused if it would pass.
    const HIDING: [&str; 8] = [
        "/files/a%2Fb",
        "/files/a%2fb",
        "/files/a%5Cb",
        "/files/a\\b",
        "/proxy/https%3A%2F%2Fexample.test",
        "/files/a%252Fb",
        "/files/a%25252fb",
        "/files/a%25%32%46b",
    ];

    /// Paths that are not ambiguous and still must not be exempt.
    const ODD: [&str; 12] = [
        "/a;b=c",
        "/a%3Bb",
        "/a/;jsessionid=1",
        "/a%3Fb",
        "/a%23b",
        "/100%25",
        "/%2541",
        "/...",
        "/..a",
        "/a%20",
        "/a%C2%A0b",
        "/%EF%BC%8E%EF%BC%8E/x",
    ];

    const AMBIGUOUS: [&str; 45] = [
        // Empty segments before the last one.
        "//payments",
        "/orders//1",
        "/payments//",
        "//",
        "/;x/payments",
        "/%3b/payments",
        // Dot segments.
        "/.",
        "/..",
        "/./payments",
        "/open/../payments",
        "/open/..",
        "/open/%2e%2e/payments",
        "/open/.%2E/payments",
        "/open/%252e%252e/payments",
        "/open/%25252e./payments",
        "/open/%25%32%65%2e/payments",
        "/open/..%2fpayments",
        "/open/a%2f..%2fpayments",
        "/open/..\\payments",
        "/open/a%5c..%5cpayments",
        "/open/..%255cpayments",
        // Dot segments with parameters or blanks.
        "/open/..;/payments",
        "/open/..;a=b/payments",
        "/open/x/..;/..;/payments",
        "/open/.;/x",
        "/open/..%3b/payments",
        "/open/..%20/payments",
        "/open/%20../payments",
        "/open/..%C2%A0/payments",
        // Controls.
        "/open/..%00/payments",
        "/open/..%09/payments",
        "/open/..%0d/payments",
        "/open/a%0Ab",
        "/open/a%7fb",
        "/open/a%C2%85b",
        // Malformed and overlong escapes.
        "/open/%u002e%u002e/payments",
        "/open/100%",
        "/open/%4",
        "/open/%zz",
        "/open/%c0%ae%c0%ae/payments",
        "/open/..%c0%af..",
        "/open/%ff",
        "/open/%E9",
        // Raw bytes.
        "/open/caf\u{e9}",
        "/open/..\u{a0}/payments",
    ];
}
