//! Parses and writes single values: durations, sizes and words. Suggests a word for a misspelt one.

use std::time::Duration;

/// Parses a duration: a whole number and a unit.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err("must not be negative");
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let millis_each = DURATION_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, millis)| *millis);
    let (Ok(number), Some(each)) = (number.parse::<u64>(), millis_each) else {
        return Err(DURATION_FORM);
    };
    number.checked_mul(each).map(Duration::from_millis).ok_or("must be at most 100 years")
}

/// Writes a duration in the shortest way. Anything shorter than a millisecond is dropped.
pub(crate) fn show_duration(length: Duration) -> String {
    let millis = length.as_millis();
    let fits = |each: u64| millis.is_multiple_of(u128::from(each)) && millis >= u128::from(each);
    // People say `24h` and `60s`, not `1d` and `1m`, and yet `1h`.
    let usual = |name: &str, each: u64| !matches!(name, "d" | "m") || millis >= 2 * u128::from(each);
    let unit = DURATION_UNITS.iter().rev().find(|(name, each)| fits(*each) && usual(name, *each));
    match unit {
        Some((name, each)) => format!("{}{name}", millis / u128::from(*each)),
        None => "0s".to_owned(),
    }
}

/// Parses a size in bytes: a whole number, alone or with a binary unit.
pub(crate) fn parse_size(text: &str) -> Result<u64, &'static str> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let bytes_each = SIZE_UNITS.iter().find(|(name, _)| *name == unit.trim_start()).map(|(_, bytes)| *bytes);
    let (Ok(number), Some(each)) = (number.parse::<u64>(), bytes_each) else {
        return Err(SIZE_FORM);
    };
    number.checked_mul(each).ok_or("is far too large")
}

/// Writes a size in the shortest way.
pub(crate) fn show_size(bytes: u64) -> String {
    let unit = SIZE_UNITS.iter().rev().find(|(_, each)| bytes.is_multiple_of(*each) && bytes >= *each);
    match unit {
        Some((name, each)) => format!("{}{name}", bytes / each),
        None => "0".to_owned(),
    }
}

/// Returns the known word that was probably meant: at most one typing error apart, or two for a long word.
pub(crate) fn near_miss<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let errors_max = if word.len() < 5 { 1 } else { 2 };
    let lower = word.to_ascii_lowercase();
    let measured = known.into_iter().map(|near| (typing_errors(&lower, &near.to_ascii_lowercase()), near));
    measured
        .filter(|(errors, _)| *errors <= errors_max)
        .min_by_key(|(errors, _)| *errors)
        .map(|(_, near)| near)
}

/// Returns the word for a value, from the table that also parses it.
pub(crate) fn word_of<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> &'static str {
    // Every table names every variant; a test checks that.
    words.iter().find(|(_, known)| known == value).map_or("?", |(word, _)| word)
}

/// Counts the letters that were added, left out, changed or swapped between `a` and `b`.
fn typing_errors(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, _) | (_, 0) => i + j,
                _ => {
                    let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                    let one = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    if swapped { one.min(rows[i - 2][j - 2] + 1) } else { one }
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

pub(crate) const DURATION_FORM: &str =
    "must be a duration such as \"250ms\", \"5s\", \"15m\", \"24h\" or \"30d\"";

pub(crate) const SIZE_FORM: &str = "must be a size such as \"1MiB\", \"512KiB\" or a number of bytes";

/// Units in milliseconds, smallest first.
const DURATION_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 24 * 3_600_000)];

/// Units in bytes, smallest first. Powers of 1000 are left out, because `MB` is ambiguous.
const SIZE_UNITS: [(&str, u64); 4] = [("", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_alike() {
        for text in ["250ms", "5s", "60s", "90s", "2m", "15m", "1h", "24h", "36h", "30d", "360d", "0s"] {
            assert_eq!(show_duration(parse_duration(text).unwrap()), text);
        }
        assert_eq!(show_duration(Duration::from_secs(3600)), "1h");
        assert_eq!(show_duration(Duration::from_millis(1500)), "1500ms");
        assert_eq!(parse_duration("0ms"), Ok(Duration::ZERO));
    }

    #[test]
    fn what_is_no_duration_says_what_one_is() {
        for text in ["", "5", "s", "5 s", "1.5h", "5S", "5min", "1h30m", "+5s", "5s5s", "١s"] {
            assert_eq!(parse_duration(text), Err(DURATION_FORM), "{text}");
        }
        assert_eq!(parse_duration("-5s"), Err("must not be negative"));
        assert_eq!(parse_duration("99999999999999999d"), Err("must be at most 100 years"));
    }

    #[test]
    fn sizes_are_read_and_written_alike() {
        for text in ["1MiB", "512KiB", "3GiB", "1000", "0"] {
            assert_eq!(show_size(parse_size(text).unwrap()), text);
        }
        assert_eq!(parse_size("1 MiB"), Ok(1 << 20));
        assert_eq!(show_size(2048), "2KiB");
        for text in ["", "MiB", "1MB", "1mib", "-1", "1.5MiB"] {
            assert_eq!(parse_size(text), Err(SIZE_FORM), "{text}");
        }
        assert_eq!(parse_size("99999999999999GiB"), Err("is far too large"));
    }

    #[test]
    fn a_near_miss_is_a_typing_error_and_not_another_word() {
        let known = ["retention", "lease", "key", "wait", "max_run"];
        assert_eq!(near_miss("retnetion", known), Some("retention"));
        assert_eq!(near_miss("Retention", known), Some("retention"));
        assert_eq!(near_miss("leases", known), Some("lease"));
        assert_eq!(near_miss("max-run", known), Some("max_run"));
        assert_eq!(near_miss("kye", known), Some("key"));
        assert_eq!(near_miss("tenant", known), None);
        assert_eq!(near_miss("x", known), None);
    }
}
