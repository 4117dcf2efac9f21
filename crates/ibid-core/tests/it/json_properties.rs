//! Properties of `json-exact` that hold for every document, checked against the oracle and another canonicaliser.

use ibid_core::fingerprint::json_exact::canonical;
use proptest::collection::{hash_map, vec};
use proptest::prelude::*;
use serde_json::{Map, Value};

use crate::oracle::{self, Exact, Number};

/// Names and strings around every boundary: escapes, controls, both sides of the surrogates.
const TEXT: &str =
    "[ab\"\\\\/\u{0}\u{8}\n\u{1f}\u{7f}\u{e9}\u{301}\u{d7ff}\u{e000}\u{fb33}\u{ffff}\u{1f602}]{0,6}";

proptest! {
    #[test]
    fn documents_without_loss_get_the_text_of_rfc_8785(document in lossless()) {
        let theirs = serde_json_canonicalizer::to_vec(&document).unwrap();
        prop_assert_eq!(canonical(&serde_json::to_vec(&document).unwrap()), Ok(theirs));
    }

    #[test]
    fn order_space_and_spelling_do_not_matter(document in any_document(), seed: u64) {
        let plain = respell(&document, &mut Dice(1));
        let other = respell(&document, &mut Dice(seed));
        prop_assert!(canonical(plain.as_bytes()).is_ok());
        prop_assert_eq!(canonical(plain.as_bytes()), canonical(other.as_bytes()), "{} {}", plain, other);
    }

    #[test]
    fn everything_else_matters(a in any_document(), b in any_document(), seed: u64) {
        let (a, b) = (respell(&a, &mut Dice(seed)), respell(&b, &mut Dice(!seed)));
        let equal = oracle::read(a.as_bytes()) == oracle::read(b.as_bytes());
        prop_assert_eq!(canonical(a.as_bytes()) == canonical(b.as_bytes()), equal, "{} {}", a, b);
    }

    #[test]
    fn any_one_byte_changed_is_another_document_or_the_same_value(
        document in any_document(), seed: u64, at: prop::sample::Index, byte: u8,
    ) {
        let text = respell(&document, &mut Dice(seed)).into_bytes();
        let mut changed = text.clone();
        changed[at.index(text.len())] = byte;
        let value = oracle::read(&changed);
        // A comma that became a digit can join two numbers into one past the cap.
        prop_assume!(!value.as_ref().is_some_and(is_beyond_cap));
        prop_assert_eq!(canonical(&changed).is_ok(), value.is_some());
        if value.is_some() {
            let equal = value == oracle::read(&text);
            prop_assert_eq!(canonical(&changed) == canonical(&text), equal);
        }
    }

    #[test]
    fn numbers_are_equal_exactly_when_their_decimals_are(a in decimal(), b in decimal()) {
        prop_assert_eq!(canonical(a.as_bytes()) == canonical(b.as_bytes()), scale(&a) == scale(&b), "{} {}", a, b);
    }

    #[test]
    fn a_number_stays_itself_in_every_spelling(number in decimal(), shift in -30_i32..30) {
        let spelling = shift_point(&number, shift);
        prop_assert_eq!(canonical(number.as_bytes()), canonical(spelling.as_bytes()), "{} {}", number, spelling);
    }

    #[test]
    fn no_bytes_make_it_panic(body: Vec<u8>, json in "[\\[\\]{}\",:0-9eE.+\\-\\\\utrfalsn \u{e9}]{0,40}") {
        prop_assert_eq!(canonical(&body).is_ok(), oracle::read(&body).is_some());
        let value = oracle::read(json.as_bytes());
        prop_assert_eq!(canonical(json.as_bytes()).is_ok(), value.is_some_and(|value| !is_beyond_cap(&value)), "{}", json);
    }
}

/// Returns whether a document has a number that `json-exact` leaves to the raw bytes (`EXPONENT_MAX`).
pub(crate) fn is_beyond_cap(value: &Exact) -> bool {
    value.any_number(&|number| number.magnitude().abs() > 6144)
}

/// Generates documents whose numbers are doubles to begin with.
fn lossless() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        (-(1_i64 << 53)..=1 << 53).prop_map(Value::from),
        any::<f64>()
            .prop_filter("JSON has no such number", |double| double.is_finite())
            .prop_map(Value::from),
        (-1e6..1e6).prop_map(Value::from),
    ];
    tree(number.boxed())
}

/// Generates documents with decimals of any length, as text in a string after a mark: a value of serde_json would round
/// them.
fn any_document() -> impl Strategy<Value = Value> {
    tree(decimal().prop_map(|text| Value::from(format!("{MARK}{text}"))).boxed())
}

fn tree(number: BoxedStrategy<Value>) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number,
        TEXT.prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            hash_map(TEXT, inner, 0..5).prop_map(|members| Value::from(Map::from_iter(members))),
        ]
    })
}

/// Generates a number token, from a space so small that equal values occur.
fn decimal() -> impl Strategy<Value = String> {
    let short = "-?(0|[1-9]0{0,3})(\\.[01]0{0,2})?([eE][+-]?0?[0-4])?";
    let long = "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?";
    prop_oneof![short, long]
}

/// Returns a decimal as an integer of units of 10^-200, in digits: equal texts are equal numbers. Nothing here goes
/// through the oracle's reader or the code under test.
fn scale(token: &str) -> String {
    let (mantissa, exponent) = token.split_once(['e', 'E']).unwrap_or((token, "0"));
    let exponent: i32 = exponent.parse().unwrap();
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let zeros = 200 + exponent - fraction.len() as i32;
    let digits = format!("{whole}{fraction}{}", "0".repeat(zeros as usize));
    match digits.trim_start_matches('0') {
        "" => "0".into(),
        digits => format!("{sign}{digits}"),
    }
}

/// Returns another spelling of the number, with its point moved and its exponent corrected.
pub(crate) fn shift_point(token: &str, shift: i32) -> String {
    let (mantissa, exponent) = token.split_once(['e', 'E']).unwrap_or((token, "0"));
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let number = Number::of(false, &format!("{whole}{fraction}"), 0);
    let power = number.power as i32 + exponent.parse::<i32>().unwrap() - fraction.len() as i32;
    match (number.digits.as_str(), shift) {
        ("", _) => format!("{sign}0.00e{shift}"),
        (digits, 1..) => format!("{sign}{digits}{}.0E{}", "0".repeat(shift as usize), power - shift),
        (digits, _) => {
            let zeros = "0".repeat(shift.unsigned_abs() as usize);
            format!("{sign}0.{zeros}{digits}e{:+}", power + digits.len() as i32 - shift)
        }
    }
}

/// Mark before the text of a number. No string of [`TEXT`] has it.
const MARK: char = '#';

/// A small deterministic random generator, good enough to choose spellings.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % sides) as usize
    }

    fn space(&mut self) -> &'static str {
        ["", "", " ", "\n\t", "\r\n  "][self.roll(5)]
    }
}

/// Returns a document's text with random member order, spaces, escapes and number spellings.
fn respell(document: &Value, dice: &mut Dice) -> String {
    let (before, after) = (dice.space(), dice.space());
    let text = match document {
        Value::String(text) => match text.strip_prefix(MARK) {
            Some(number) => shift_point(number, dice.roll(9) as i32 - 4),
            None => respell_string(text, dice),
        },
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(|value| respell(value, dice)).collect();
            format!("[{}{}]", values.join(","), if values.is_empty() { dice.space() } else { "" })
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            for at in (1..members.len()).rev() {
                members.swap(at, dice.roll(at as u64 + 1));
            }
            let member = |(name, value): (&String, &Value)| {
                format!(
                    "{}{}{}:{}",
                    dice.space(),
                    respell_string(name, dice),
                    dice.space(),
                    respell(value, dice)
                )
            };
            format!("{{{}}}", members.into_iter().map(member).collect::<Vec<_>>().join(","))
        }
        plain => plain.to_string(),
    };
    format!("{before}{text}{after}")
}

fn respell_string(text: &str, dice: &mut Dice) -> String {
    let mut text_out = String::from("\"");
    for char in text.chars() {
        let escaped: String =
            char.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
        match (char, dice.roll(3)) {
            (_, 0) => text_out.push_str(&escaped),
            (_, 1) => text_out.push_str(&escaped.to_uppercase().replace("\\U", "\\u")),
            ('"' | '\\' | '/', _) => text_out.extend(['\\', char]),
            ('\n', _) => text_out.push_str("\\n"),
            ('\u{8}', _) => text_out.push_str("\\b"),
            ('\0'..='\x1f', _) => text_out.push_str(&escaped),
            (char, _) => text_out.push(char),
        }
    }
    text_out + "\""
}
