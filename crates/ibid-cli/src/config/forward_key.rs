//! The key `forward_key`: the rule for forwarding the idempotency key to the upstream.

use ibid_core::forward_key::ForwardKey;
use ibid_core::key_source::KeySourceError;

use super::toml_reader::{Reader, Section};

/// Reads the rule of one table.
pub(super) fn read(section: &mut Section<'_, '_>, reader: &Reader<'_>) -> Option<ForwardKey> {
    let text = section.text("forward_key")?;
    let line = section.line_of("forward_key").unwrap_or(section.line);
    match ForwardKey::parse(&text) {
        Ok(rule) => Some(rule),
        Err(KeySourceError::Unknown(text)) => {
            let problem = format!("`forward_key` is \"{text}\", which is no way to forward a key");
            let hint = "write \"auto\", \"as-sent\", \"off\" or \"header:NAME\"";
            reader.refuse_with_hint(line, problem, hint);
            None
        }
        Err(error) => {
            reader.refuse(line, format!("`forward_key`: {error}"));
            None
        }
    }
}
