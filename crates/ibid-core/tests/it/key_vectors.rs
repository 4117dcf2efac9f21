//! Tests keys against the Structured Fields vectors and against header lines that others published.

use ibid_core::key::{Key, KeyError, KeyForm};
use serde_json::Value;

use crate::vectors;

#[test]
fn strings_are_read_as_the_structured_fields_vectors_say() {
    for file in ["string", "string-generated", "item"] {
        for case in cases(file) {
            let read = strict(&case);
            let Some(expected) = case["expected"][0].as_str() else {
                assert!(read.is_err(), "{file}: {} must fail", case["name"]);
                continue;
            };
            match read {
                Ok(Some(key)) => assert_eq!(key.as_str(), expected, "{file}: {}", case["name"]),
                Err(KeyError::Empty) => assert_eq!(expected, "", "{file}: {}", case["name"]),
                Err(KeyError::TooLong) => assert!(expected.len() > Key::LEN_MAX, "{file}: {}", case["name"]),
                // A string split over two lines: the vectors leave the choice (`can_fail`), and we refuse.
                Err(KeyError::Repeated) => assert_eq!(case["can_fail"], true, "{file}: {}", case["name"]),
                other => panic!("{file}: {} gave {other:?}", case["name"]),
            }
        }
    }
}

#[test]
fn other_types_are_no_keys_in_strict_form() {
    for file in ["token", "token-generated", "binary", "number", "boolean", "date", "display-string"] {
        for case in cases(file) {
            assert!(strict(&case).is_err(), "{file}: {}", case["name"]);
        }
    }
}

#[test]
fn a_broken_string_is_never_read_as_a_bare_key() {
    for case in cases("string").into_iter().chain(cases("string-generated")) {
        if case["must_fail"] == true && lines(&case)[0].trim_start_matches(' ').starts_with('"') {
            let read = Key::from_lines(lines(&case).iter().map(|l| l.as_bytes()), KeyForm::QuotedOrBare);
            assert!(read.is_err(), "{}", case["name"]);
        }
    }
}

#[test]
fn header_lines_as_published_name_their_keys() {
    let mut read = 0;
    for example in vectors::read_cases("idempotency-key/header-examples.json") {
        let (Some(line), Some(key)) = (example["header_line"].as_str(), example["key"].as_str()) else {
            continue;
        };
        let value = line.split_once(": ").expect("a field line").1.as_bytes();
        assert_eq!(Key::parse(value, KeyForm::QuotedOrBare).unwrap().as_str(), key);
        let quoted = example["structured_field_type"] == "string";
        assert_eq!(Key::parse(value, KeyForm::QuotedOnly).is_ok(), quoted, "{line}");
        read += 1;
    }
    assert_eq!(read, 6);
}

fn cases(file: &str) -> Vec<Value> {
    vectors::read_cases(&format!("structured-fields/{file}.json"))
}

fn lines(case: &Value) -> Vec<&str> {
    case["raw"].as_array().expect("raw lines").iter().map(|line| line.as_str().expect("a line")).collect()
}

fn strict(case: &Value) -> Result<Option<Key>, KeyError> {
    Key::from_lines(lines(case).iter().map(|line| line.as_bytes()), KeyForm::QuotedOnly)
}
