//! The text of a statement for many changes: what differs are the rows of `w`, and what all of them share is written once.
//!
//! The server's parser takes about 3,000 instructions for each value, a third of all that it did for a key when every row had
//! every value. Of the changes of one flight most values are the same: state, policy, intervals, often the operation.

use ibid_core::row::RecordColumns;
use ibid_core::sql::Param;

use super::super::literal;

/// A column of the rows of a statement.
#[derive(Debug)]
pub(super) struct FlightColumn {
    pub(super) name: &'static str,
    /// Index of its value in a row.
    pub(super) param: usize,
    /// The value differs in nearly all rows, so it is not compared.
    pub(super) is_unique: bool,
}

impl FlightColumn {
    pub(super) const fn unique(name: &'static str, param: usize) -> FlightColumn {
        FlightColumn { name, param, is_unique: true }
    }

    pub(super) const fn shared(name: &'static str, param: usize) -> FlightColumn {
        FlightColumn { name, param, is_unique: false }
    }
}

/// The way in which a server takes a list of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowList {
    /// `values (…), (…)`, on MariaDB: a third faster than [`RowList::Selects`].
    Values,
    /// `select … union all select …`, on every server.
    Selects,
}

/// The values of one change: those of [`RecordColumns::params`], and the version that it expects.
pub(super) type FlightRow<'c> = [Param<'c>; RecordColumns::COUNT + 2];

/// Appends `template` with the table `w` of these rows in the place of `$with`. Where a column has one value in all rows, the
/// value is in the place of `w.column`. There must be a row.
pub(super) fn push(
    text: &mut String,
    template: &str,
    columns: &[FlightColumn],
    rows: &[FlightRow<'_>],
    list: RowList,
) {
    let is_shared = |column: &&FlightColumn| {
        !column.is_unique && rows.iter().all(|row| row[column.param] == rows[0][column.param])
    };
    let (shared, varying): (Vec<_>, Vec<_>) = columns.iter().partition(is_shared);
    text.reserve(template.len() + rows.len() * ROW_BYTES);
    let mut rest = template;
    while let Some(at) = rest.find(['$', 'w']) {
        let (before, found) = rest.split_at(at);
        text.push_str(before);
        let is_word = !text.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if let Some(behind) = found.strip_prefix("$with") {
            push_table(text, &varying, rows, list);
            rest = behind;
        } else if let Some(behind) = found.strip_prefix("w.").filter(|_| is_word) {
            let end = behind.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(behind.len());
            let (name, behind) = behind.split_at(end);
            match shared.iter().find(|column| column.name == name) {
                Some(column) => literal::push(text, &rows[0][column.param]),
                None => text.extend(["w.`", name, "`"]),
            }
            rest = behind;
        } else {
            text.push_str(&found[..1]);
            rest = &found[1..];
        }
    }
    text.push_str(rest);
}

/// Appends `with w (…) as (…)`. Some names of columns are words of one server or the other.
fn push_table(text: &mut String, columns: &[&FlightColumn], rows: &[FlightRow<'_>], list: RowList) {
    text.push_str("with w (");
    for (nth, column) in columns.iter().enumerate() {
        text.extend([if nth == 0 { "`" } else { ", `" }, column.name, "`"]);
    }
    let [first, next, start, end] = match list {
        RowList::Values => ["values ", ",", "(", ")"],
        RowList::Selects => ["", " union all ", "select ", ""],
    };
    text.extend([") as (", first]);
    for (nth, row) in rows.iter().enumerate() {
        text.extend([if nth == 0 { "" } else { next }, start]);
        for (nth, column) in columns.iter().enumerate() {
            text.push_str(if nth == 0 { "" } else { "," });
            literal::push(text, &row[column.param]);
        }
        text.push_str(end);
    }
    text.push(')');
}

/// Bytes of a row with a small response, so that a text is rarely moved while it grows.
const ROW_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use ibid_core::sql::Type;

    use super::*;

    const COLUMNS: [FlightColumn; 3] =
        [FlightColumn::unique("id", 0), FlightColumn::shared("key", 1), FlightColumn::shared("due", 2)];

    fn row(id: i64, key: &str, due: i64) -> FlightRow<'_> {
        let mut row = [Param::Null(Type::I64); RecordColumns::COUNT + 2];
        row[..3].copy_from_slice(&[Param::I64(id), Param::Text(key), Param::I64(due)]);
        row
    }

    #[test]
    fn what_all_rows_share_is_written_once() {
        let text = |rows: &[FlightRow<'_>], list| {
            let (mut text, sql) =
                (String::new(), "insert into t (w, x) $with select w.id, w.key, now + w.due from w");
            push(&mut text, sql, &COLUMNS, rows, list);
            text
        };
        assert_eq!(
            text(&[row(1, "a", 60), row(2, "b", 60)], RowList::Values),
            "insert into t (w, x) with w (`id`, `key`) as (values (1,x'61'),(2,x'62')) select w.`id`, w.`key`, now + 60 from w"
        );
        assert_eq!(
            text(&[row(1, "a", 60)], RowList::Selects),
            "insert into t (w, x) with w (`id`) as (select 1) select w.`id`, x'61', now + 60 from w"
        );
    }
}
