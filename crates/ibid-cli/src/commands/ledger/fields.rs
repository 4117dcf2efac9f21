//! The fields of one JSON line. Numbers keep the text that they were written with: an amount is never a double.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Names and values, in the order in which they are written.
pub(super) struct Fields(Vec<(String, Box<RawValue>, String)>);

impl Fields {
    /// Reads one object; why not, if it can't be.
    pub(super) fn parse(line: &[u8]) -> Result<Fields, String> {
        let text = std::str::from_utf8(line).map_err(|_| "it is not UTF-8".to_owned())?;
        serde_json::from_str(text).map_err(|error| {
            // Its line is always the first; ours is said by whoever asked.
            error.to_string().replace(" at line 1 column ", " at column ")
        })
    }

    /// The value of a field as text: that of a string, nothing for null, and anything else as it is written.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(field, ..)| field == name).map(|(.., text)| text.as_str())
    }

    /// The names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, ..)| name.as_str())
    }

    /// The object again.
    pub(super) fn whole(&self) -> String {
        let field = |(name, raw, _): &(String, Box<RawValue>, String)| {
            format!("{}:{}", serde_json::Value::from(name.as_str()), raw.get())
        };
        format!("{{{}}}", self.0.iter().map(field).collect::<Vec<_>>().join(","))
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        deserializer.deserialize_map(Object)
    }
}

struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        use serde::de::Error;
        let mut fields: Vec<(String, Box<RawValue>, String)> = Vec::new();
        while let Some((name, raw)) = map.next_entry::<String, Box<RawValue>>()? {
            if fields.iter().any(|(known, ..)| *known == name) {
                return Err(A::Error::custom(format_args!("two fields are called `{name}`")));
            }
            let text = match raw.get() {
                "null" => String::new(),
                quoted if quoted.starts_with('"') => {
                    serde_json::from_str(quoted).map_err(A::Error::custom)?
                }
                other => other.to_owned(),
            };
            fields.push((name, raw, text));
        }
        Ok(Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_text_and_numbers_stay_as_written() {
        let line =
            r#"{"key":"a\"b","n":12.50,"big":9007199254740993,"none":null,"yes":true,"deep":{"a":[1]}}"#;
        let fields = Fields::parse(line.as_bytes()).unwrap();
        let expected = ["a\"b", "12.50", "9007199254740993", "", "true", r#"{"a":[1]}"#];
        assert!(fields.names().zip(expected).all(|(name, text)| fields.get(name) == Some(text)));
        assert_eq!(fields.whole(), line);
        assert_eq!(fields.get("absent"), None);
    }

    #[test]
    fn what_is_no_object_or_says_two_things_is_refused() {
        for line in [&b"[1]"[..], b"7", b"{", b"{} x", b"{\"a\":1,\"a\":2}", b"\xff", b"{\"a\":\"\\ud800\"}"]
        {
            assert!(Fields::parse(line).is_err(), "{}", String::from_utf8_lossy(line));
        }
        let error = Fields::parse(b"{\"a\":1,\"a\":2}").err().unwrap();
        assert!(error.contains("two fields are called `a`"), "{error}");
    }
}
