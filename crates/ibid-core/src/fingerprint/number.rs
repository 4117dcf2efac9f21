//! Writes JSON numbers by their exact decimal value, never through a double.
//!
//! The text is the one that ECMAScript would write, with as many digits as the value has. If a double holds the value's
//! digits, it is byte for byte the text of RFC 8785. Otherwise RFC 8785 would round, and two amounts would become one.

use super::json_exact::NotExactError;

/// Writes the normal form of a number token. `token` must follow the JSON grammar.
pub(super) fn write(token: &[u8], out: &mut Vec<u8>) -> Result<(), NotExactError> {
    let digits = token.strip_prefix(b"-").unwrap_or(token);
    if digits.len() <= POINT_MAX as usize && digits[0] != b'0' && digits.iter().all(u8::is_ascii_digit) {
        // Most numbers are integers already in normal form.
        out.extend_from_slice(token);
        return Ok(());
    }
    let decimal = Decimal::of(token);
    if decimal.len() == 0 {
        // Zero has one form, whatever its sign and exponent.
        out.push(b'0');
        return Ok(());
    }
    if !(-EXPONENT_MAX..=EXPONENT_MAX).contains(&decimal.point.saturating_sub(1)) {
        return Err(NotExactError::Exponent);
    }
    decimal.write(out);
    Ok(())
}

/// The value `0.d₁d₂…dₖ × 10^point` with neither d₁ nor dₖ zero; no digits at all for zero.
struct Decimal<'t> {
    negative: bool,
    /// The significant digits, in two pieces because a point may be between them.
    high: &'t [u8],
    low: &'t [u8],
    point: i64,
}

impl<'t> Decimal<'t> {
    fn of(token: &'t [u8]) -> Decimal<'t> {
        let (negative, rest) = match token {
            [b'-', rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let (mantissa, exponent) = match rest.iter().position(|byte| matches!(byte, b'e' | b'E')) {
            Some(at) => (&rest[..at], read_exponent(&rest[at + 1..])),
            None => (rest, 0),
        };
        let (mut high, mut low) = match mantissa.iter().position(|&byte| byte == b'.') {
            Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
            None => (mantissa, &[][..]),
        };
        let mut point = exponent.saturating_add(high.len() as i64);
        while let [b'0', rest @ ..] = high {
            (high, point) = (rest, point.saturating_sub(1));
        }
        if high.is_empty() {
            while let [b'0', rest @ ..] = low {
                (low, point) = (rest, point.saturating_sub(1));
            }
        }
        while let [rest @ .., b'0'] = low {
            low = rest;
        }
        if low.is_empty() {
            while let [rest @ .., b'0'] = high {
                high = rest;
            }
        }
        Decimal { negative, high, low, point }
    }

    fn len(&self) -> usize {
        self.high.len() + self.low.len()
    }

    /// Writes the number by ECMA-262, Number::toString: `k` is our `len`, `n` our `point`.
    fn write(&self, out: &mut Vec<u8>) {
        let len = self.len() as i64;
        if self.negative {
            out.push(b'-');
        }
        if len <= self.point && self.point <= POINT_MAX {
            self.write_digits(0, len, out);
            out.resize(out.len() + (self.point - len) as usize, b'0');
        } else if 0 < self.point && self.point <= POINT_MAX {
            self.write_digits(0, self.point, out);
            out.push(b'.');
            self.write_digits(self.point, len, out);
        } else if POINT_MIN < self.point && self.point <= 0 {
            out.extend_from_slice(b"0.");
            out.resize(out.len() + (-self.point) as usize, b'0');
            self.write_digits(0, len, out);
        } else {
            self.write_digits(0, 1, out);
            if len > 1 {
                out.push(b'.');
                self.write_digits(1, len, out);
            }
            let sign = if self.point > 0 { "+" } else { "" };
            out.extend_from_slice(format!("e{sign}{}", self.point - 1).as_bytes());
        }
    }

    fn write_digits(&self, from: i64, to: i64, out: &mut Vec<u8>) {
        let (from, to, seam) = (from as usize, to as usize, self.high.len());
        out.extend_from_slice(&self.high[from.min(seam)..to.min(seam)]);
        out.extend_from_slice(&self.low[from.max(seam) - seam..to.max(seam) - seam]);
    }
}

/// Reads an exponent, saturated far outside the range that [`EXPONENT_MAX`] allows.
fn read_exponent(text: &[u8]) -> i64 {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let step = |value: i64, digit: &u8| value.saturating_mul(10).saturating_add(i64::from(digit - b'0'));
    let value = digits.iter().fold(0, step);
    if negative { -value } else { value }
}

/// Largest number of digits for which ECMAScript writes an integer without an exponent.
const POINT_MAX: i64 = 21;

/// ECMAScript writes up to five zeros after the point, and an exponent for smaller values.
const POINT_MIN: i64 = -6;

/// Largest power of ten in either direction that counts as a number: that of IEEE 754's widest decimal format
/// (decimal128, 6144).
///
/// Doubles end at 308, and beyond that receivers already disagree whether the value is zero, infinite or an error. Past
/// 6144 no receiver computes with it, and the body counts by its bytes.
const EXPONENT_MAX: i64 = 6144;
