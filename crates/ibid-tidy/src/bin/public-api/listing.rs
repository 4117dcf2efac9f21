//! A listing of a crate's public items, one line each, out of rustdoc's JSON.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Lists the crate that the JSON describes. `root` is the workspace, to which the paths of sources are relative.
pub(crate) fn read(root: &Path, json: &Path) -> Result<String, Box<dyn Error>> {
    let document: Value = serde_json::from_slice(&fs::read(json)?)?;
    let mut listing = Listing {
        root,
        index: &document["index"],
        sources: BTreeMap::new(),
        listed: BTreeMap::new(),
        lines: BTreeSet::new(),
    };
    let crate_item = listing.item(&document["root"]).ok_or("it has no root module")?;
    let name = crate_item["name"].as_str().unwrap_or_default().to_owned();
    // Breadth first, so that an item is described under its shortest path.
    let mut queue = VecDeque::from([(name, crate_item)]);
    while let Some((path, module)) = queue.pop_front() {
        for member in ids(&module["inner"]["module"]["items"]) {
            listing.member(&path, member, &mut queue);
        }
    }
    let mut text: String = listing.lines.iter().map(|line| format!("{line}\n")).collect();
    if text.is_empty() {
        text.push_str("(nothing is public)\n");
    }
    Ok(text)
}

struct Listing<'a> {
    root: &'a Path,
    index: &'a Value,
    sources: BTreeMap<String, String>,
    /// The place where an item has been described.
    listed: BTreeMap<String, String>,
    lines: BTreeSet<String>,
}

impl<'a> Listing<'a> {
    fn item(&self, id: &Value) -> Option<&'a Value> {
        self.index.get(id.to_string())
    }

    /// Lists what a module holds under `path`: an item, or one that it re-exports.
    fn member(&mut self, path: &str, id: &Value, queue: &mut VecDeque<(String, &'a Value)>) {
        let Some(item) = self.item(id) else { return };
        let reexport = &item["inner"]["use"];
        if reexport.is_null() {
            let path = format!("{path}::{}", item["name"].as_str().unwrap_or_default());
            return self.describe(&path, id, item, queue);
        }
        let target = self.item(&reexport["id"]);
        match target {
            Some(target) if reexport["is_glob"] == true => {
                let members = ["module", "enum"].into_iter().find_map(|kind| target["inner"].get(kind));
                let members = members.map_or(&Value::Null, |inner| {
                    if inner["items"].is_array() { &inner["items"] } else { &inner["variants"] }
                });
                ids(members).for_each(|member| self.member(path, member, queue));
            }
            Some(target) => {
                let path = format!("{path}::{}", reexport["name"].as_str().unwrap_or_default());
                self.describe(&path, &reexport["id"], target, queue);
            }
            None => {
                let source = reexport["source"].as_str().unwrap_or_default();
                let name = reexport["name"].as_str().unwrap_or_default();
                let glob = if reexport["is_glob"] == true { "::*" } else { "" };
                self.lines.insert(format!("{path}::{name}: pub use {source}{glob}"));
            }
        }
    }

    fn describe(
        &mut self,
        path: &str,
        id: &Value,
        item: &'a Value,
        queue: &mut VecDeque<(String, &'a Value)>,
    ) {
        if let Some(first) = self.listed.get(&id.to_string()) {
            self.lines.insert(format!("{path}: pub use {first}"));
            return;
        }
        self.listed.insert(id.to_string(), path.to_owned());
        let inner = &item["inner"];
        if inner["module"].is_object() {
            self.lines.insert(format!("{path}: pub mod"));
            queue.push_back((path.to_owned(), item));
            return;
        }
        let signature = self.signature(item);
        self.lines.insert(format!("{path}: {}{signature}", attributes(item)));
        let body = ["struct", "enum", "union", "trait"].into_iter().find_map(|kind| inner.get(kind));
        let Some(body) = body else { return };
        let fields = [&body["kind"]["plain"]["fields"], &body["kind"]["tuple"], &body["fields"]];
        for id in fields.into_iter().chain([&body["variants"], &body["items"]]).flat_map(ids) {
            self.part(path, id);
        }
        self.impls(path, &body["impls"]);
    }

    /// Lists a field, variant, method, or associated type or constant.
    fn part(&mut self, path: &str, id: &Value) {
        let Some(item) = self.item(id) else { return };
        let name = item["name"].as_str().unwrap_or_default();
        let signature = self.signature(item);
        self.lines.insert(format!("{path}::{name}: {}{signature}", attributes(item)));
    }

    /// Lists public methods, and the traits that are implemented, derived or by hand.
    fn impls(&mut self, path: &str, impls: &Value) {
        let mut derived = BTreeSet::new();
        for id in ids(impls) {
            let Some(item) = self.item(id) else { continue };
            let inner = &item["inner"]["impl"];
            if inner["is_synthetic"] == true || !inner["blanket_impl"].is_null() {
                continue;
            }
            if inner["trait"].is_null() {
                let members: Vec<&Value> = ids(&inner["items"]).collect();
                for id in members {
                    if self.item(id).is_some_and(|member| member["visibility"] == "public") {
                        self.part(path, id);
                    }
                }
                continue;
            }
            let name = inner["trait"]["path"].as_str().unwrap_or_default();
            if COMPILER_TRAITS.contains(&name) {
                continue;
            }
            let header = self.signature(item);
            if header.starts_with("impl") {
                self.lines.insert(format!("{path}: {header}"));
            } else {
                derived.insert(name);
            }
        }
        if !derived.is_empty() {
            let names: Vec<&str> = derived.into_iter().collect();
            self.lines.insert(format!("{path}: derive {}", names.join(", ")));
        }
    }

    /// The declaration as it is written, up to its body, in one line.
    fn signature(&mut self, item: &Value) -> String {
        let span = &item["span"];
        let Some(file) = span["filename"].as_str() else { return String::new() };
        let root = self.root;
        let source = self
            .sources
            .entry(file.to_owned())
            .or_insert_with(|| fs::read_to_string(root.join(file)).unwrap_or_default());
        let text = cut(source, &span["begin"], &span["end"]);
        let has_body = ["function", "impl", "struct", "enum", "trait", "union"];
        let has_body = has_body.iter().any(|kind| item["inner"].get(kind).is_some());
        let has_value =
            ["constant", "static", "assoc_const"].iter().any(|kind| item["inner"].get(kind).is_some());
        one_line(&match (has_body, has_value) {
            (true, _) => head(&text),
            // The type is the promise; a value may change.
            (_, true) => text.split(" = ").next().unwrap_or_default().to_owned(),
            _ => text,
        })
    }
}

/// Attributes that are part of the promise.
fn attributes(item: &Value) -> String {
    let attributes = item["attrs"].as_array().into_iter().flatten();
    let names = attributes.filter_map(|attribute| match attribute {
        Value::String(name) => Some(name.as_str()),
        Value::Object(fields) => fields.keys().next().map(String::as_str),
        _ => None,
    });
    names.filter(|name| PROMISES.contains(name)).map(|name| format!("#[{name}] ")).collect()
}

fn ids(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// The text between two positions, each a line and a column from 1.
fn cut(source: &str, begin: &Value, end: &Value) -> String {
    let at = |position: &Value, part: usize| position[part].as_u64().unwrap_or(1) as usize;
    let (first, last) = (at(begin, 0), at(end, 0));
    let mut text = String::new();
    for (number, line) in source.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        let from = if number == first { at(begin, 1) - 1 } else { 0 };
        let to = if number == last { at(end, 1) - 1 } else { usize::MAX };
        if (first..=last).contains(&number) {
            text.extend(line.chars().take(to).skip(from));
            text.push('\n');
        }
    }
    text
}

/// A declaration up to its body: the first brace outside brackets, or the tuple of a struct.
fn head(text: &str) -> String {
    let mut depth = 0usize;
    let end = text.find(|c: char| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && matches!(c, '{' | ';')
    });
    text[..end.unwrap_or(text.len())].to_owned()
}

/// Without comments and attributes, and with single blanks.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("//") && !line.starts_with("#["));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let line = words.join(" ").replace("( ", "(").replace(", )", ")").replace(" )", ")").replace(", }", " }");
    // How a parameter is bound is no promise.
    let line = line.replace("(mut ", "(").replace(", mut ", ", ");
    line.trim_end_matches([',', ';', ' ']).to_owned()
}

/// Attributes whose change breaks or warns users.
const PROMISES: [&str; 2] = ["non_exhaustive", "must_use"];

/// Traits that only the compiler implements.
const COMPILER_TRAITS: [&str; 2] = ["StructuralPartialEq", "UseCloned"];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_declaration_is_cut_at_its_body() {
        assert_eq!(
            one_line(&head("pub fn f(\n    a: [u8; 4],\n) -> u8 {\n    1\n}")),
            "pub fn f(a: [u8; 4]) -> u8"
        );
        assert_eq!(one_line(&head("pub struct A(pub u8);")), "pub struct A(pub u8)");
        assert_eq!(one_line("B {\n    /// Doc.\n    at: u8,\n},"), "B { at: u8 }");
    }

    #[test]
    fn positions_count_from_one() {
        assert_eq!(cut("a\nbcd\nef", &json!([2, 2]), &json!([3, 2])), "cd\ne\n");
    }

    #[test]
    fn promises_are_kept_and_other_attributes_left_out() {
        let item =
            json!({ "attrs": ["non_exhaustive", { "must_use": { "reason": null } }, { "other": "#[x]" }] });
        assert_eq!(attributes(&item), "#[non_exhaustive] #[must_use] ");
    }
}
