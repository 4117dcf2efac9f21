//! The keys that configure what a fingerprint covers.

use ibid_core::fingerprint::{BodyRule, Pointer, Recipe};
use serde_json::{Value, json};

use super::header_names;
use super::toml_reader::{Reader, Section};
use super::units::word_of;

/// The fingerprint keys that one table sets.
#[derive(Clone, Debug, Default)]
pub(super) struct RecipeKeys {
    headers: Option<Vec<String>>,
    include: Option<Vec<Pointer>>,
    exclude: Option<Vec<Pointer>>,
    body: Option<BodyRule>,
}

impl RecipeKeys {
    pub(super) fn read(section: &mut Section<'_, '_>, reader: &Reader<'_>) -> RecipeKeys {
        RecipeKeys {
            headers: header_names::read("fingerprint_headers", section, reader),
            include: read_pointers("include", section, reader),
            exclude: read_pointers("exclude", section, reader),
            body: section.choice("body", &BODY_RULES, &[]),
        }
    }

    /// Applies these keys to `recipe`. A key replaces the earlier value; it does not add to it.
    pub(super) fn apply(&self, recipe: &mut Recipe) {
        let headers = self.headers.as_deref().unwrap_or(recipe.headers());
        let include = self.include.as_deref().unwrap_or(recipe.include());
        let exclude = self.exclude.as_deref().unwrap_or(recipe.exclude());
        let mut result = Recipe::default().with_body(self.body.unwrap_or(recipe.body()));
        result = headers.iter().fold(result, |result, name| result.with_header(name));
        result = include.iter().fold(result, |result, pointer| result.with_include(pointer.clone()));
        *recipe = exclude.iter().fold(result, |result, pointer| result.with_exclude(pointer.clone()));
    }
}

/// Returns the fingerprint keys of a recipe with their values.
pub(super) fn fields(recipe: &Recipe) -> Vec<(&'static str, Value)> {
    let texts = |pointers: &[Pointer]| json!(pointers.iter().map(Pointer::as_str).collect::<Vec<_>>());
    vec![
        ("fingerprint_headers", json!(recipe.headers())),
        ("include", texts(recipe.include())),
        ("exclude", texts(recipe.exclude())),
        ("body", json!(word_of(&BODY_RULES, &recipe.body()))),
    ]
}

fn read_pointers(
    key: &'static str,
    section: &mut Section<'_, '_>,
    reader: &Reader<'_>,
) -> Option<Vec<Pointer>> {
    let mut pointers = Vec::new();
    for text in section.texts(key)? {
        match Pointer::parse(&text) {
            Ok(pointer) => pointers.push(pointer),
            Err(error) => {
                let line = section.line_of(key).unwrap_or(section.line);
                reader.refuse_with_hint(line, format!("`{key}`: {error}"), "write for example `/amount`");
            }
        }
    }
    Some(pointers)
}

const BODY_RULES: [(&str, BodyRule); 2] = [("auto", BodyRule::Auto), ("raw", BodyRule::Raw)];
