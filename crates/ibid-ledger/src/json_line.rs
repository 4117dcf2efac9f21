//! Reads the fields of one JSON line. Numbers keep the text they were written with, so no amount becomes a float.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Names, raw values and values as text, in the order of the line.
pub(crate) struct JsonLine(Vec<(String, Box<RawValue>, String)>);

impl JsonLine {
    /// Parses one object. The error says why it cannot be read.
    pub(crate) fn parse(line: &[u8]) -> Result<JsonLine, String> {
        let text = std::str::from_utf8(line).map_err(|_| "it is not UTF-8".to_owned())?;
        serde_json::from_str(text).map_err(|error| {
            // serde_json's line number is always 1; the caller adds the one in the file.
            error.to_string().replace(" at line 1 column ", " at column ")
        })
    }

    /// Returns a field as text: a string's content, nothing for null, anything else as written.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(field, ..)| field == name).map(|(.., text)| text.as_str())
    }

    /// Returns the names of the fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, ..)| name.as_str())
    }

    /// Writes the object as JSON again.
    pub(crate) fn to_json(&self) -> String {
        let field = |(name, raw, _): &(String, Box<RawValue>, String)| {
            format!("{}:{}", serde_json::Value::from(name.as_str()), raw.get())
        };
        format!("{{{}}}", self.0.iter().map(field).collect::<Vec<_>>().join(","))
    }
}

impl<'de> Deserialize<'de> for JsonLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JsonLine, D::Error> {
        deserializer.deserialize_map(Object)
    }
}

struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = JsonLine;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonLine, A::Error> {
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
        Ok(JsonLine(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_text_and_numbers_stay_as_written() {
        let line =
            r#"{"key":"a\"b","n":12.50,"big":9007199254740993,"none":null,"yes":true,"deep":{"a":[1]}}"#;
        let fields = JsonLine::parse(line.as_bytes()).unwrap();
        let expected = ["a\"b", "12.50", "9007199254740993", "", "true", r#"{"a":[1]}"#];
        assert!(fields.names().zip(expected).all(|(name, text)| fields.get(name) == Some(text)));
        assert_eq!(fields.to_json(), line);
        assert_eq!(fields.get("absent"), None);
    }

    #[test]
    fn what_is_no_object_or_says_two_things_is_refused() {
        for line in [&b"[1]"[..], b"7", b"{", b"{} x", b"{\"a\":1,\"a\":2}", b"\xff", b"{\"a\":\"\\ud800\"}"]
        {
            assert!(JsonLine::parse(line).is_err(), "{}", String::from_utf8_lossy(line));
        }
        let error = JsonLine::parse(b"{\"a\":1,\"a\":2}").err().unwrap();
        assert!(error.contains("two fields are called `a`"), "{error}");
    }
}
