//! Instants as sources write them: seconds or milliseconds since the epoch, or RFC 3339.

/// Microseconds since the epoch; none if it is neither.
pub(super) fn parse(text: &str) -> Option<i64> {
    match text.parse::<i64>() {
        Ok(number) if number.unsigned_abs() < MILLIS_FROM => number.checked_mul(1_000_000),
        Ok(number) => number.checked_mul(1_000),
        Err(_) => rfc_3339(text),
    }
}

/// `2026-11-16T03:00:00.25+01:00`. A fraction is cut after microseconds; a leap second counts as the one before it.
fn rfc_3339(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let (year, month, day) = three(date, '-')?;
    let zone = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let (hour, minute, second) = three(clock, ':')?;
    let is_date = (1..=12).contains(&month) && (1..=31).contains(&day);
    if !is_date || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let micros = micros_of(fraction)?;
    let offset = match zone.split_at(1) {
        ("Z" | "z", "") => 0,
        ("+", zone) => offset(zone)?,
        (_, zone) => -offset(zone)?,
    };
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second.min(59) - offset;
    Some(seconds * 1_000_000 + micros)
}

/// Three numbers of digits alone.
fn three(text: &str, between: char) -> Option<(i64, i64, i64)> {
    let mut parts = text.split(between).map(digits);
    match (parts.next()??, parts.next()??, parts.next()??, parts.next()) {
        (first, second, third, None) => Some((first, second, third)),
        _ => None,
    }
}

fn digits(text: &str) -> Option<i64> {
    let fits = (1..=DIGITS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    fits.then(|| text.parse().ok())?
}

fn micros_of(fraction: &str) -> Option<i64> {
    let known: String = fraction.chars().take(6).collect();
    let rest = &fraction[known.len()..];
    let is_plain = rest.bytes().all(|byte| byte.is_ascii_digit());
    digits(&format!("{known:0<6}")).filter(|_| is_plain && !known.is_empty())
}

fn offset(zone: &str) -> Option<i64> {
    let (hours, minutes) = zone.split_once(':')?;
    let (hours, minutes) = (digits(hours)?, digits(minutes)?);
    (hours <= 23 && minutes <= 59).then_some(hours * 3_600 + minutes * 60)
}

/// Days from the epoch to this date of the Gregorian calendar, counted in years that begin in March, so that the leap day
/// is a year's last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    year * 365 + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 1
        - EPOCH
}

/// Numbers from here on are milliseconds: as seconds they would be in the year 5138.
const MILLIS_FROM: u64 = 100_000_000_000;

/// Digits of a part of a date: enough for a year, and no number of them overflows.
const DIGITS_MAX: usize = 6;

/// Days from the first of March of the year 0 to the epoch.
const EPOCH: i64 = 719_468;

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn instants_are_read_in_every_form() {
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
    fn what_is_no_instant_is_none() {
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
            "99999999999-11-03T20:26:10Z",
            "9999999999999999999",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
