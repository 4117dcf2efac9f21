//! Which bodies in JSON are one request, and which parts of them count.

use super::*;
use crate::fingerprint::json_exact::NotExactError;

#[test]
fn integers_beyond_a_double_are_distinguished() {
    differ_json("9007199254740992", "9007199254740993");
    differ_json("[9223372036854775807]", "[9223372036854775808]");
    differ_json("[10000000000000000999]", "[10000000000000001000]");
}

#[test]
fn long_decimals_are_distinguished() {
    differ_json("[1.000000000000000005]", "[1]");
    differ_json("[0.1]", "[0.1000000000000000055511151231257827]");
}

#[test]
fn one_value_has_many_spellings() {
    for one in ["1.0", "1E0", "1e0", "10e-1", "0.1e1", "1.000", "0.0001E+4", "1e-0"] {
        same_json("1", one);
    }
    same_json("1E6", "1000000");
    same_json("1e-7", "0.0000001");
    same_json("-1.50", "-15e-1");
    differ_json("1", "-1");
    differ_json("1", "\"1\"");
}

#[test]
fn zero_has_no_sign() {
    for zero in ["-0", "0.0", "-0.0", "0e9", "-0E-9", "0e99999999999999999999"] {
        same_json("[0]", &format!("[{zero}]"));
    }
}

#[test]
fn overflow_and_underflow_keep_their_value_up_to_the_cap() {
    differ_json("1e400", "1e401");
    differ_json("1E-999", "0");
    same_json("1e400", "10E399");
    same_json("1e6144", "10e6143");
    assert_eq!(json_exact::canonical(b"1e6144").unwrap(), b"1e+6144");
    for token in ["1e6145", "10e6144", "-1e-6145", "1e99999999999999999999", "0.1e-99999999999999999999"] {
        assert_eq!(json_exact::canonical(token.as_bytes()), Err(NotExactError::Exponent), "{token}");
    }
    differ_json("[1e6145]", "[ 1e6145]");
    // The tokenizer's own bound on digits before the point.
    assert!(json_exact::canonical("9".repeat(4300).as_bytes()).is_ok());
    assert_eq!(json_exact::canonical("9".repeat(4301).as_bytes()), Err(NotExactError::NotJson));
}

#[test]
fn repeated_names_count_raw() {
    let canonical = |text: &str| json_exact::canonical(text.as_bytes());
    for text in
        [r#"{"a":1,"a":2}"#, r#"{"a":1,"a":1}"#, r#"{"b":0,"a":1,"\u0061":0}"#, r#"[{"a":{"b":1,"b":-0}}]"#]
    {
        assert_eq!(canonical(text), Err(NotExactError::RepeatedName), "{text}");
    }
    differ_json(r#"{"a":1,"a":2}"#, r#"{"a":2}"#);
    differ_json(r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#);
    // A name that occurs in two objects is not repeated.
    assert!(canonical(r#"{"a":{"a":1},"b":{"a":1}}"#).is_ok());
}

#[test]
fn broken_text_counts_raw() {
    let broken: [&[u8]; 9] = [
        br#"["\ud800"]"#,
        br#"["\udc00\ud800"]"#,
        br#"["\ud800a"]"#,
        br#"{"\udfaa":0}"#,
        b"[\"\xff\"]",
        b"[\"\xed\xa0\x80\"]",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe[\0]\0",
        b"[\"\xc0\xaf\"]",
    ];
    for (at, body) in broken.iter().enumerate() {
        assert_eq!(json_exact::canonical(body), Err(NotExactError::NotJson), "{at}");
        differ_json(body, [body, &b" "[..]].concat());
    }
    differ_json(br#"["\ud800"]"#, r#"["\ufffd"]"#);
}

#[test]
fn unicode_is_never_normalised() {
    differ_json("[\"\u{e9}\"]", "[\"e\u{301}\"]");
    differ_json("{\"\u{e9}\":1}", "{\"e\u{301}\":1}");
}

#[test]
fn escapes_are_spellings() {
    same_json(r#"["\u0041\/\u00e9\ud83d\ude02"]"#, "[\"A/\u{e9}\u{1f602}\"]");
    same_json(r#"["\u000a\u0022\u005c"]"#, r#"["\n\"\\"]"#);
    differ_json(r#"["\\n"]"#, r#"["\n"]"#);
    differ_json(r#"["\u0000"]"#, r#"[""]"#);
}

#[test]
fn names_are_ordered_as_utf16() {
    let canonical = json_exact::canonical("{\"\u{fb33}\":1,\"\u{1f602}\":2}".as_bytes()).unwrap();
    assert_eq!(canonical, "{\"\u{1f602}\":2,\"\u{fb33}\":1}".as_bytes());
}

#[test]
fn deep_bodies_count_raw_and_cost_no_stack() {
    let nested = |depth: usize| ["[".repeat(depth), "]".repeat(depth)].concat();
    let max = json_exact::DEPTH_MAX;
    assert!(json_exact::canonical(nested(max).as_bytes()).is_ok());
    for depth in [max + 1, 500, 1_000_000] {
        assert_eq!(json_exact::canonical(nested(depth).as_bytes()), Err(NotExactError::TooDeep));
    }
    assert_eq!(json_exact::canonical("{\"a\":".repeat(100_000).as_bytes()), Err(NotExactError::TooDeep));
    differ_json(nested(max + 1), [nested(max + 1), " ".into()].concat());
}

#[test]
fn a_body_that_is_not_json_counts_raw() {
    for body in [
        "",
        " ",
        "nul",
        "[1,]",
        "{\"a\":1,}",
        "{} {}",
        "[1]x",
        "01",
        "1.",
        ".5",
        "+1",
        "NaN",
        "-Infinity",
        "'a'",
    ] {
        assert_eq!(json_exact::canonical(body.as_bytes()), Err(NotExactError::NotJson), "{body}");
        differ_json(body, format!("{body} "));
    }
}

#[test]
fn a_raw_body_never_passes_for_json() {
    let json = post("{\"a\":1}");
    let raw = Recipe::default().with_body(BodyRule::Raw);
    let ours = secrets();
    assert_ne!(
        ours.fingerprint(&raw, Profile::Ietf, &json),
        ours.fingerprint(&Recipe::default(), Profile::Ietf, &json)
    );
    differ_under(&raw, &post("[1]"), &post("[ 1]"));
    same_under(&raw, &post("[1]"), &post("[1]"));
}

#[test]
fn excluded_values_may_change_and_all_else_may_not() {
    let recipe =
        Recipe::default().with_exclude(pointer("/meta/sent_at")).with_exclude(pointer("/lines/0/id"));
    let body = |at: &str, id: &str, to: &str| {
        post(format!(r#"{{"to":"{to}","meta":{{"sent_at":{at},"v":1}},"lines":[{{"id":{id},"n":1}}]}}"#))
    };
    same_under(&recipe, &body("1", "1", "ann"), &body("\"later\"", "[2]", "ann"));
    differ_under(&recipe, &body("1", "1", "ann"), &body("1", "1", "bob"));
    let bare = post(r#"{"to":"ann","meta":{"v":1},"lines":[{"n":1}]}"#);
    same_under(&recipe, &body("1", "1", "ann"), &bare);
    // A body that cannot be read as JSON counts whole.
    differ_under(
        &recipe,
        &post(r#"{"meta":{"sent_at":1,"sent_at":2}}"#),
        &post(r#"{"meta":{"sent_at":1,"sent_at":3}}"#),
    );
}

#[test]
fn only_included_values_count() {
    let recipe = Recipe::default().with_include(pointer("/to")).with_include(pointer("/amount"));
    let fields = |text: &str| post(format!("{{{text}}}"));
    same_under(
        &recipe,
        &fields(r#""to":1,"amount":2,"note":3"#),
        &fields(r#""note":[],"amount":2.0,"to":1"#),
    );
    differ_under(&recipe, &fields(r#""to":1,"amount":2"#), &fields(r#""to":1,"amount":3"#));
    differ_under(&recipe, &fields(r#""to":1,"amount":2"#), &fields(r#""to":2,"amount":1"#));
    differ_under(&recipe, &fields(r#""to":1,"amount":null"#), &fields(r#""to":1"#));
    differ_under(&recipe, &fields(r#""to":1"#), &fields(r#""amount":1"#));
}

#[test]
fn a_body_with_nothing_included_counts_whole() {
    let recipe = Recipe::default().with_include(pointer("/to")).with_exclude(pointer("/at"));
    differ_under(&recipe, &post(r#"{"note":1}"#), &post(r#"{"note":2}"#));
    differ_under(&recipe, &post(r#"{"note":1,"at":1}"#), &post(r#"{"note":1,"at":2}"#));
    same_under(&recipe, &post(r#"{"note":1,"at":1}"#), &post(r#"{"at":1,"note":1}"#));
    differ_under(&recipe, &post(r#"{"note":1}"#), &post("[]"));
    differ_under(&recipe, &post("\"a\""), &post("\"b\""));
}

#[test]
fn exclusion_applies_to_included_values() {
    let recipe = Recipe::default().with_include(pointer("/order")).with_exclude(pointer("/order/at"));
    let body = |at: u8, n: u8, note: u8| post(format!(r#"{{"order":{{"at":{at},"n":{n}}},"note":{note}}}"#));
    same_under(&recipe, &body(1, 1, 1), &body(2, 1, 2));
    differ_under(&recipe, &body(1, 1, 1), &body(1, 2, 1));
}
