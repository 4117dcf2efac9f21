//! Compares amounts by their exact decimal value: `12.50` equals `12.5`. No floating point is involved.

/// Returns whether two values are equal, as text or as decimal numbers.
///
/// A number is digits with an optional minus sign and an optional fraction. Text with a superfluous leading zero is not a
/// number: the last four digits of a card are not an amount. Neither is text with an exponent: some ids look like that.
pub(super) fn is_same_value(a: &str, b: &str) -> bool {
    a == b || parts(a).is_some_and(|a| Some(a) == parts(b))
}

/// Splits a number into sign, whole part and fraction, normalised so that equal values have equal parts.
fn parts(text: &str) -> Option<(bool, &str, &str)> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = match digits.split_once('.') {
        Some((_, "")) => return None,
        Some(both) => both,
        None => (digits, ""),
    };
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let superfluous = whole.len() > 1 && whole.starts_with('0');
    if whole.is_empty() || superfluous || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let is_zero = whole == "0" && fraction.is_empty();
    Some((negative && !is_zero, whole, fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_decimal_numbers_are_compared_by_value() {
        for (a, b) in [("12.50", "12.5"), ("12", "12.00"), ("0", "-0.0"), ("-1.10", "-1.1"), ("EUR", "EUR")] {
            assert!(is_same_value(a, b) && is_same_value(b, a), "{a} {b}");
        }
        let odd = [("12.5", "12.05"), ("1", "-1"), ("0042", "42"), ("1e2", "100"), ("1.", "1"), ("+1", "1")];
        for (a, b) in odd.into_iter().chain([("", "0"), (".5", "0.5"), ("1,5", "1.5"), ("eur", "EUR")]) {
            assert!(!is_same_value(a, b) && !is_same_value(b, a), "{a} {b}");
        }
        // As doubles these two are one.
        assert!(!is_same_value("9007199254740993", "9007199254740992"));
        assert!(is_same_value("0.10000000000000000000000001", "0.100000000000000000000000010"));
    }
}
