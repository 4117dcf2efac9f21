//! The reference page of the tables, generated from the comments in the schema files; `IBID_BLESS=1` rewrites it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[test]
fn the_page_of_tables_matches_the_schema_files() {
    let mut page = String::from(INTRODUCTION);
    for (store, name) in [("postgres", "PostgreSQL"), ("sqlite", "SQLite")] {
        let _ = writeln!(page, "\n## {name}");
        for file in ["records", "evidence", "outbox", "views", "steps"] {
            let path = root().join(format!("crates/ibid/src/store/{store}/schema/{file}.sql"));
            let Ok(sql) = std::fs::read_to_string(&path) else { continue };
            for relation in relations(&sql) {
                write(&mut page, &relation);
            }
        }
    }
    let path = root().join("docs/reference/schema.md");
    if std::env::var_os("IBID_BLESS").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/reference/schema.md is stale: run with IBID_BLESS=1");
}

#[test]
fn every_column_says_who_sets_it_and_when() {
    let mut columns = 0;
    for store in ["postgres", "sqlite"] {
        let folder = root().join(format!("crates/ibid/src/store/{store}/schema"));
        for entry in std::fs::read_dir(folder).expect("a folder of schema files") {
            let path = entry.expect("an entry").path();
            let sql = std::fs::read_to_string(&path).expect("a schema file");
            for relation in relations(&sql).into_iter().filter(|relation| !relation.is_view) {
                let table = format!("`{}` in {}", relation.name, path.display());
                assert!(!relation.comment.is_empty(), "{table} has no comment above it");
                for column in &relation.columns {
                    assert!(!column.comment.is_empty(), "column `{}` of {table} has no comment", column.name);
                    columns += 1;
                }
            }
        }
    }
    assert!(columns > 100, "columns are found: {columns}");
}

/// A table or a view.
struct Relation {
    name: String,
    is_view: bool,
    comment: String,
    columns: Vec<Column>,
    /// Indexes, each with the comment above it.
    indexes: Vec<(String, String)>,
}

struct Column {
    name: String,
    definition: String,
    comment: String,
}

/// Reads the relations of a schema file. It knows the form of our files: one column per line, its comment at the end, the
/// comment of a relation right above it.
fn relations(sql: &str) -> Vec<Relation> {
    let (mut found, mut comment): (Vec<Relation>, Vec<&str>) = (Vec::new(), Vec::new());
    let mut is_inside = false;
    for line in sql.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["create", kind @ ("table" | "view"), name, ..] => {
                is_inside = true;
                let (name, is_view) = ((*name).to_owned(), *kind == "view");
                let comment = std::mem::take(&mut comment).join(" ");
                found.push(Relation { name, is_view, comment, columns: Vec::new(), indexes: Vec::new() });
            }
            ["create", "index", name, "on", ..] => {
                if let Some(relation) = found.last_mut() {
                    let comment = std::mem::take(&mut comment).join(" ");
                    relation.indexes.push((index_text(name, line), comment));
                }
            }
            _ if is_inside && (line.starts_with(')') || line.ends_with(';')) => is_inside = false,
            _ if is_inside => {
                if let Some(relation) = found.last_mut().filter(|relation| !relation.is_view) {
                    relation.columns.extend(column(line));
                }
            }
            ["--"] | [] => comment.clear(),
            ["--", ..] => comment.push(line.trim_start_matches("--").trim()),
            _ => comment.clear(),
        }
    }
    found
}

/// Reads one column; `None` for a constraint.
fn column(line: &str) -> Option<Column> {
    let (code, comment) = line.split_once("-- ").unwrap_or((line, ""));
    let (name, definition) = code.trim().trim_end_matches(',').split_once(' ')?;
    if ["constraint", "unique", "primary", "check", "--"].contains(&name) {
        return None;
    }
    let definition = definition.trim().trim_end_matches(',').trim_end();
    Some(Column {
        name: name.to_owned(),
        definition: definition.to_owned(),
        comment: comment.trim().to_owned(),
    })
}

/// Returns an index with its columns and its condition.
fn index_text(name: &str, line: &str) -> String {
    let columns = line.split_once('(').map_or("", |(_, rest)| rest).trim_end_matches(';');
    format!("`{name}` `({columns}`")
}

fn write(page: &mut String, relation: &Relation) {
    let kind = if relation.is_view { "View" } else { "Table" };
    let _ = writeln!(page, "\n### {kind} `{}`\n", relation.name);
    let _ = writeln!(page, "{}", relation.comment);
    if !relation.columns.is_empty() {
        let _ = writeln!(page, "\n| column | type | set by, and meaning |\n| --- | --- | --- |");
    }
    for Column { name, definition, comment } in &relation.columns {
        let _ = writeln!(page, "| `{name}` | `{definition}` | {} |", comment.replace('|', "\\|"));
    }
    if !relation.indexes.is_empty() {
        let _ = writeln!(page, "\nIndexes:\n");
    }
    for (index, comment) in &relation.indexes {
        let comment = if comment.is_empty() { String::new() } else { format!(": {comment}") };
        let _ = writeln!(page, "- {index}{comment}");
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

const INTRODUCTION: &str = "\
<!-- Written by a test of ibid: change crates/ibid/src/store/*/schema/*.sql and run it with IBID_BLESS=1. -->

# Tables

ibid's tables and views begin with `ibid_`. Read the views: they show names and readable instants, and change less often than the tables.
Write to none of them: ibid compares versions that only its own statements keep, and a tool that sets a column may make a request run twice.

Instants are microseconds since 1970, by the server's clock on PostgreSQL and by the node's on SQLite. Nonces are unsigned 64-bit numbers
stored with the same bits. The head of `crates/ibid/src/store/*/schema/records.sql` says who sets which instant.
";
