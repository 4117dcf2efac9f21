//! The keys that say what a fingerprint covers.

use ibid_core::fingerprint::Recipe;
use serde_json::{Value, json};

use super::read::{Reader, Section};

/// What one place says about the fingerprint.
#[derive(Clone, Debug, Default)]
pub(super) struct RecipeKeys {
    headers: Option<Vec<String>>,
    include: Option<Vec<String>>,
    exclude: Option<Vec<String>>,
    raw_body: Option<bool>,
}

impl RecipeKeys {
    pub(super) fn read(section: &mut Section<'_, '_>, reader: &Reader<'_>) -> RecipeKeys {
        let keys = RecipeKeys {
            headers: section.texts("fingerprint_headers"),
            include: section.texts("include"),
            exclude: section.texts("exclude"),
            raw_body: section.choice("body", &[("auto", false), ("raw", true)], &[]),
        };
        for name in keys.headers.iter().flatten() {
            if name.parse::<http::HeaderName>().is_err() {
                let problem = format!("`fingerprint_headers` holds `{name}`, which is not a header name");
                reader.refuse(section.line_of("fingerprint_headers").unwrap_or(section.line), problem);
            }
        }
        for (key, pointers) in [("include", &keys.include), ("exclude", &keys.exclude)] {
            for pointer in pointers.iter().flatten().filter(|pointer| !is_pointer(pointer)) {
                let problem =
                    format!("`{key}` holds `{pointer}`, which is not a JSON pointer such as `/amount`");
                reader.refuse(section.line_of(key).unwrap_or(section.line), problem);
            }
        }
        keys
    }

    /// Lays what was said over `recipe`.
    pub(super) fn apply(&self, recipe: &mut Recipe) {
        if let Some(headers) = &self.headers {
            recipe.headers = headers.iter().map(|name| name.to_ascii_lowercase()).collect();
        }
        // MERGE: the placeholder has headers only; `include`, `exclude` and `raw_body` go here.
        let _ = (&self.include, &self.exclude, self.raw_body);
    }
}

/// What the fingerprint covers, by key.
pub(super) fn fields(recipe: &Recipe) -> Vec<(&'static str, Value)> {
    // MERGE: add include, exclude and body.
    vec![("fingerprint_headers", json!(recipe.headers))]
}

/// RFC 6901: empty, or tokens that each begin with a slash; `~` only as `~0` and `~1`.
// MERGE: `Pointer::parse` says the same with a reason.
fn is_pointer(text: &str) -> bool {
    let escapes = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    escapes && (text.is_empty() || text.starts_with('/'))
}
