//! Tests `json-exact` against the RFC 8785 vectors and a large collection of hard JSON files.

use ibid_core::fingerprint::{Recipe, RequestView, Secret, Secrets, json_exact};
use ibid_core::policy::Profile;

use crate::json_properties::{is_beyond_cap, shift_point};
use crate::{oracle, vectors};

#[test]
fn where_no_digit_is_lost_the_text_is_rfc_8785s() {
    let mut read = 0;
    for (name, input) in vectors::read_dir("jcs/input") {
        let output = vectors::read(&format!("jcs/output/{name}"));
        let ours = String::from_utf8(json_exact::canonical(&input).unwrap()).unwrap();
        // The only number in these files that a double cannot hold: RFC 8785 rounds it, and we must not.
        let rounded = ours.replace("333333333.33333329", "333333333.3333333");
        assert_eq!(rounded != ours, name == "values.json");
        assert_eq!(rounded, String::from_utf8(output.clone()).unwrap(), "{name}");
        assert_eq!(json_exact::canonical(&output).unwrap(), output, "{name}: its own text stays");
        read += 1;
    }
    assert_eq!(read, 6, "the crate carries these files");
}

#[test]
fn shortest_double_texts_are_already_exact() {
    for file in ["jcs/es6/es6-first-1000.txt", "jcs/es6/es6-random-1000.txt"] {
        let text = String::from_utf8(vectors::read(file)).unwrap();
        assert_eq!(text.lines().count(), 1000, "{file} is whole");
        for line in text.lines() {
            let (_bits, text) = line.split_once(',').expect("bits and text");
            assert_eq!(json_exact::canonical(text.as_bytes()).unwrap(), text.as_bytes());
            for shift in [-25, -3, 0, 1, 22] {
                let spelling = shift_point(text, shift);
                assert_eq!(
                    json_exact::canonical(spelling.as_bytes()).unwrap(),
                    text.as_bytes(),
                    "{spelling}"
                );
            }
        }
    }
}

#[test]
fn hard_files_are_exact_only_where_every_reader_agrees() {
    for (name, body) in hard_files() {
        let exact = json_exact::canonical(&body);
        let value = oracle::read(&body);
        assert_eq!(exact.is_ok(), value.as_ref().is_some_and(|value| !is_beyond_cap(value)), "{name}");
        if name.starts_with("n_") {
            assert!(exact.is_err(), "{name} is not JSON");
        }
        if let Ok(text) = exact {
            assert_eq!(oracle::read(&text), value, "{name}: another value");
            assert_eq!(json_exact::canonical(&text).as_ref(), Ok(&text), "{name}: its own text stays");
        }
    }
}

#[test]
fn no_two_hard_files_are_taken_for_one_unless_they_are() {
    let secrets = Secrets::new(vec![Secret::new([7; 32]).unwrap()]).unwrap();
    let files: Vec<_> = hard_files()
        .into_iter()
        .map(|(name, body)| {
            let fingerprint = secrets.fingerprint(&Recipe::default(), Profile::Ietf, &Json(&body)).to_bytes();
            (name, oracle::read(&body), body, fingerprint)
        })
        .collect();
    for (at, (a_name, a_value, a_body, a)) in files.iter().enumerate() {
        for (b_name, b_value, b_body, b) in &files[..at] {
            if a == b {
                let equal = a_body == b_body || (a_value.is_some() && a_value == b_value);
                assert!(equal, "{a_name} and {b_name} are two documents with one fingerprint");
            } else {
                assert_ne!(a_body, b_body, "{a_name} and {b_name} are one document with two fingerprints");
            }
        }
    }
}

fn hard_files() -> Vec<(String, Vec<u8>)> {
    let mut files = vectors::read_dir("json-parsing/test_parsing");
    files.extend(vectors::read_dir("json-parsing/test_transform"));
    assert_eq!(files.len(), 338, "the collection is whole");
    files
}

struct Json<'b>(&'b [u8]);

impl RequestView for Json<'_> {
    fn method(&self) -> &str {
        "POST"
    }
    fn path(&self) -> &str {
        "/"
    }
    fn query(&self) -> Option<&str> {
        None
    }
    fn header_lines(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        if name == "content-type" {
            each(b"application/json");
        }
    }
    fn body(&self) -> &[u8] {
        self.0
    }
}
