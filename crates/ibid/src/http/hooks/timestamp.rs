//! Timestamps as webhook sources write them: seconds or milliseconds since the epoch, or RFC 3339.

/// Parses a timestamp. Returns microseconds since the epoch, or `None` if it is neither a number nor RFC 3339.
pub(super) fn parse(text: &str) -> Option<i64> {
    match text.parse::<i64>() {
        Ok(number) if number.unsigned_abs() < MILLIS_FROM => number.checked_mul(1_000_000),
        Ok(number) => number.checked_mul(1_000),
        // A fraction is cut after microseconds; a leap second counts as the second before it.
        Err(_) if has_rfc_3339_shape(text.as_bytes()) => {
            text.parse::<jiff::Timestamp>().ok().map(|at| at.as_microsecond())
        }
        Err(_) => None,
    }
}

/// Returns whether a text has seconds and an offset with a colon. jiff reads more of ISO 8601 than RFC 3339 allows.
fn has_rfc_3339_shape(text: &[u8]) -> bool {
    let has = |at: usize, one_of: &[u8]| text.get(at).is_some_and(|byte| one_of.contains(byte));
    let (has_date, has_time) =
        (has(4, b"-") && has(7, b"-") && has(10, b"Tt "), has(13, b":") && has(16, b":"));
    let has_zone = match text.len() {
        len @ 20.. if has(len - 1, b"Zz") => true,
        len @ 25.. => has(len - 6, b"+-") && has(len - 3, b":"),
        _ => false,
    };
    has_date && has_time && has(19, b".Zz+-") && has_zone
}

/// Numbers from here on are milliseconds: as seconds they would be in the year 5138.
const MILLIS_FROM: u64 = 100_000_000_000;

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn timestamps_are_read_in_every_form() {
        let expected = Some(1_667_507_170_344_522);
        assert_eq!(parse("2022-11-03T20:26:10.344522Z"), expected);
        assert_eq!(parse("2022-11-03T21:26:10.344522999+01:00"), expected);
        assert_eq!(parse("2022-11-03 15:56:10.344522-04:30"), expected);
        assert_eq!(parse("1667507170"), Some(1_667_507_170_000_000));
        assert_eq!(parse("1667507170344"), Some(1_667_507_170_344_000));
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1969-12-31T23:59:59Z", -1),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2000-03-01T00:00:00Z", 951_868_800),
            ("2016-12-31T23:59:60Z", 1_483_228_799),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
        ] {
            assert_eq!(parse(text), Some(seconds * 1_000_000), "{text}");
        }
    }

    #[test]
    fn other_text_is_no_timestamp() {
        for text in [
            "",
            "yesterday",
            "2022-11-03",
            "2022-11-03T20:26:10",
            "2022-13-03T20:26:10Z",
            "2022-11-03T24:00:00Z",
            "2022-11-03T20:26Z",
            "2022-11-03T20:26:10.Z",
            "2022-11-03T20:26:10.3é4Z",
            "2022-11-03T20:26:10+0100",
            "2022-11-03T20:26:10Zulu",
            "2022-11-03T20:26:10+01:00[Europe/Berlin]",
            "99999999999-11-03T20:26:10Z",
            "9999999999999999999",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn impossible_dates_are_refused() {
        for text in ["2026-02-31T00:00:00Z", "2026-02-29T00:00:00Z", "2026-04-31T00:00:00Z"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
