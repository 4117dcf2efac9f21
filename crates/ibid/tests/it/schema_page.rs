//! The reference page of the tables, generated from the comments in the schema files; `IBID_BLESS=1` rewrites it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[test]
fn the_page_of_tables_matches_the_schema_files() {
    let mut page = String::from(INTRODUCTION);
    for (store, name) in [("postgres", "PostgreSQL"), ("mysql", "MySQL and MariaDB"), ("sqlite", "SQLite")] {
        let _ = writeln!(page, "\n## {name}");
        let records = root().join(format!("crates/ibid/src/store/{store}/schema/records.sql"));
        write_head(&mut page, &std::fs::read_to_string(records).expect("a schema file"));
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
fn every_view_shows_its_columns() {
    let sql = "create view v as\nselect r.id,\n  case r.a when 1 then 'x, y' end as a, -- why\n  f(r.b, 2) as `b`\nfrom t r\nleft join u;";
    let views = relations(sql);
    let columns: Vec<_> =
        views[0].columns.iter().map(|column| (&*column.name, &*column.definition)).collect();
    assert_eq!(columns, [("id", "r.id"), ("a", "case r.a when 1 then 'x, y' end"), ("b", "f(r.b, 2)")]);
}

#[test]
fn every_column_says_who_sets_it_and_when() {
    let mut columns = 0;
    for store in ["postgres", "mysql", "sqlite"] {
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
    assert!(columns > 200, "columns are found: {columns}");
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
    let (mut is_inside, mut select) = (false, String::new());
    for line in sql.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["create", kind @ "table", "if", "not", "exists", name, ..]
            | ["create", "or", "replace", kind @ "view", name, ..]
            | ["create", kind @ ("table" | "view"), name, ..] => {
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
            ["key" | "unique", ..] if is_inside && line.contains(" ibid_") => {
                if let Some(relation) = found.last_mut() {
                    let comment = std::mem::take(&mut comment).join(" ");
                    relation.indexes.push((inner_index_text(line), comment));
                }
            }
            _ if is_inside && found.last().is_some_and(|relation| relation.is_view) => {
                let code = line.split_once("-- ").map_or(line, |(code, _)| code);
                select.push_str(code);
                select.push('\n');
                if code.ends_with(';') {
                    is_inside = false;
                    let columns = view_columns(&std::mem::take(&mut select));
                    found.last_mut().expect("the view").columns = columns;
                }
            }
            ["--", ..] if is_inside => comment.push(line.trim().trim_start_matches("--").trim()),
            _ if is_inside && (line.starts_with(')') || line.ends_with(';')) => is_inside = false,
            _ if is_inside => {
                if let Some(relation) = found.last_mut() {
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
        name: name.trim_matches('`').to_owned(),
        definition: definition.to_owned(),
        comment: comment.trim().to_owned(),
    })
}

/// Reads the columns of a view from its statement: each has its name and the expression that it shows.
fn view_columns(select: &str) -> Vec<Column> {
    let words = select.split_whitespace().collect::<Vec<_>>().join(" ");
    let list = words.strip_prefix("select ").expect("a view is one select");
    let (mut items, mut item, mut depth, mut is_text) = (Vec::new(), String::new(), 0, false);
    for (at, letter) in list.char_indices() {
        match letter {
            ' ' if depth == 0 && !is_text && list[at..].starts_with(" from ") => break,
            '\'' => is_text = !is_text,
            '(' if !is_text => depth += 1,
            ')' if !is_text => depth -= 1,
            _ => {}
        }
        match letter == ',' && depth == 0 && !is_text {
            true => items.push(std::mem::take(&mut item)),
            false => item.push(letter),
        }
    }
    items.push(item);
    let read = |item: String| {
        let item = item.trim();
        let last = item.rsplit(['.', ' ']).next().unwrap_or(item);
        let (definition, name) = item.rsplit_once(" as ").unwrap_or((item, last));
        Column {
            name: name.trim_matches('`').to_owned(),
            definition: definition.to_owned(),
            comment: String::new(),
        }
    };
    items.into_iter().map(read).collect()
}

/// Returns an index with its columns and its condition.
fn index_text(name: &str, line: &str) -> String {
    let columns = line.split_once('(').map_or("", |(_, rest)| rest).trim_end_matches(';');
    format!("`{name}` `({columns}`")
}

/// Returns an index that is declared inside its table, with its columns.
fn inner_index_text(line: &str) -> String {
    let line = line.trim().trim_end_matches(',');
    let (name, columns) = line.split_once('(').unwrap_or((line, ""));
    let name = name.split_whitespace().next_back().unwrap_or_default();
    format!("`{name}` `({columns}`")
}

fn write(page: &mut String, relation: &Relation) {
    let kind = if relation.is_view { "View" } else { "Table" };
    let _ = writeln!(page, "\n### {kind} `{}`\n", relation.name);
    let _ = writeln!(page, "{}", relation.comment);
    let _ = match relation.is_view {
        true => writeln!(page, "\n| column | shows |\n| --- | --- |"),
        false => writeln!(page, "\n| column | type | set by, and meaning |\n| --- | --- | --- |"),
    };
    for Column { name, definition, comment } in &relation.columns {
        let (definition, comment) = (definition.replace('|', "\\|"), comment.replace('|', "\\|"));
        let _ = match relation.is_view {
            true if definition.contains('`') => writeln!(page, "| `{name}` | `` {definition} `` |"),
            true => writeln!(page, "| `{name}` | `{definition}` |"),
            false => writeln!(page, "| `{name}` | `{definition}` | {comment} |"),
        };
    }
    if !relation.indexes.is_empty() {
        let _ = writeln!(page, "\nIndexes:\n");
    }
    for (index, comment) in &relation.indexes {
        let comment = if comment.is_empty() { String::new() } else { format!(": {comment}") };
        let _ = writeln!(page, "- {index}{comment}");
    }
}

/// Writes the comment at the head of a schema file: prose as it is, the table of instants with its columns aligned.
fn write_head(page: &mut String, sql: &str) {
    let mut is_table = false;
    let _ = writeln!(page);
    for line in sql.lines().map_while(|line| line.strip_prefix("--")) {
        let line = line.strip_prefix(' ').unwrap_or(line);
        if line.starts_with('|') != is_table {
            is_table = !is_table;
            let _ = writeln!(page, "{}", if is_table { "```text" } else { "```" });
        }
        let _ = writeln!(page, "{line}");
    }
    if is_table {
        let _ = writeln!(page, "```");
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

The section of each store begins with the instants of a record: who sets each one, and when. They are by the server's clock on PostgreSQL and
MySQL, and by the node's on SQLite.
";
