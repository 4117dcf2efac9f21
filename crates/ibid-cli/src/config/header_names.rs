//! Reads lists of header names.

use super::toml_reader::{Reader, Section};

/// Reads the header names under `key`, in lower case, and refuses invalid ones.
pub(super) fn read(
    key: &'static str,
    section: &mut Section<'_, '_>,
    reader: &Reader<'_>,
) -> Option<Vec<String>> {
    let names = section.texts(key)?;
    for name in &names {
        if name.parse::<http::HeaderName>().is_err() {
            let problem = format!("`{key}` holds `{name}`, which is not a header name");
            reader.refuse(section.line_of(key).unwrap_or(section.line), problem);
        }
    }
    Some(names.iter().map(|name| name.to_ascii_lowercase()).collect())
}
