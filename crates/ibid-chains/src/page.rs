//! Tables in Markdown, and the page that shows them.

use std::fmt::Write as _;
use std::path::Path;

/// One table of the page, between `<!-- chains: NAME -->` and the next `<!-- end -->`.
pub(crate) struct Table {
    name: &'static str,
    columns: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(name: &'static str, columns: &'static [&'static str]) -> Table {
        println!("\n{}", line(columns.iter().copied()));
        println!("{}", line(columns.iter().map(|_| "---")));
        Table { name, columns, rows: Vec::new() }
    }

    /// Adds a row and prints it at once, because a run takes minutes.
    pub(crate) fn push(&mut self, row: Vec<String>) {
        println!("{}", line(row.iter().map(String::as_str)));
        self.rows.push(row);
    }

    fn markdown(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "{}", line(self.columns.iter().copied()));
        let _ = writeln!(text, "{}", line(self.columns.iter().map(|_| "---")));
        for row in &self.rows {
            let _ = writeln!(text, "{}", line(row.iter().map(String::as_str)));
        }
        text
    }
}

/// Compares the tables with the page or, with `bless`, writes them there. Returns the problems.
pub(crate) fn keep(page: &Path, tables: &[Table], bless: bool) -> Vec<String> {
    let path = page.display();
    let mut text = match std::fs::read_to_string(page) {
        Ok(text) => text,
        Err(error) => return vec![format!("cannot read `{path}`: {error}")],
    };
    let mut problems = Vec::new();
    for table in tables {
        let Some((start, end)) = block(&text, table.name) else {
            problems.push(format!("`{path}` has no place for the table `{}`", table.name));
            continue;
        };
        let measured = table.markdown();
        if bless {
            text.replace_range(start..end, &measured);
        } else {
            problems.extend(difference(table.name, &text[start..end], &measured));
        }
    }
    if bless && let Err(error) = std::fs::write(page, text) {
        problems.push(format!("cannot write `{path}`: {error}"));
    }
    problems
}

/// Returns the byte range of the table in the text.
fn block(text: &str, name: &str) -> Option<(usize, usize)> {
    let mark = format!("<!-- chains: {name} -->\n");
    let start = text.find(&mark)? + mark.len();
    Some((start, start + text[start..].find("<!-- end -->")?))
}

fn difference(name: &str, written: &str, found: &str) -> Vec<String> {
    let (written, found): (Vec<&str>, Vec<&str>) = (written.lines().collect(), found.lines().collect());
    let gone = written.iter().filter(|line| !found.contains(line)).map(|line| format!("{name}: - {line}"));
    let new = found.iter().filter(|line| !written.contains(line)).map(|line| format!("{name}: + {line}"));
    let mut lines: Vec<String> = gone.chain(new).collect();
    if lines.is_empty() && written != found {
        lines.push(format!("{name}: the rows are in another order, or one is there twice"));
    }
    lines
}

fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_compared_row_by_row_and_blessed() {
        let file = std::env::temp_dir().join(format!("ibid-chains-{}", std::process::id()));
        std::fs::write(&file, "before\n<!-- chains: t -->\n| a |\n| --- |\n| 1 |\n<!-- end -->\nafter\n")
            .expect("a file");
        let table = |cell: &str| Table { name: "t", columns: &["a"], rows: vec![vec![cell.to_owned()]] };
        assert_eq!(keep(&file, &[table("1")], false), Vec::<String>::new());
        assert_eq!(keep(&file, &[table("2")], false), ["t: - | 1 |", "t: + | 2 |"]);
        assert_eq!(keep(&file, &[table("2")], true), Vec::<String>::new());
        assert_eq!(keep(&file, &[table("2")], false), Vec::<String>::new());
        let text = std::fs::read_to_string(&file).expect("the file");
        assert!(text.starts_with("before\n") && text.ends_with("\nafter\n"), "{text}");
        std::fs::remove_file(&file).expect("our own file");
    }
}
