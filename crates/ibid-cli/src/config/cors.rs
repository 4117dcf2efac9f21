//! `[cors]`: the origins whose scripts may read the gateway's own responses.

use ibid::http::Cors;

use super::toml_reader::{Reader, Section};

/// Reads `[cors]`. Without it, no origin is allowed.
pub(super) fn read(root: &mut Section<'_, '_>, reader: &Reader<'_>) -> Cors {
    let mut section = root.section("cors", "cors");
    let origins = section.texts("origins").unwrap_or_default();
    let credentials = section.boolean("credentials").unwrap_or(false);
    let max_age = section.duration("max_age");
    if origins.is_empty() && (credentials || max_age.is_some()) && section.line_of("origins").is_none() {
        let hint = "write for example `origins = [\"https://shop.example\"]`";
        reader.refuse_with_hint(section.line, "`[cors]` allows no origin: it has no `origins`", hint);
    }
    let refuse = |key: &'static str, section: &Section<'_, '_>, error: &dyn std::fmt::Display| {
        reader.refuse(section.line_of(key).unwrap_or(section.line), format!("`{key}`: {error}"));
        Cors::default()
    };
    let mut cors = Cors::new(&origins).unwrap_or_else(|error| refuse("origins", &section, &error));
    if credentials {
        cors = cors.credentials().unwrap_or_else(|error| refuse("credentials", &section, &error));
    }
    if let Some(max_age) = max_age {
        cors = cors.max_age(max_age);
    }
    section.finish();
    cors
}
