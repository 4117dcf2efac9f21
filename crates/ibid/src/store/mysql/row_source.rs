//! Lists of values as a source of rows, which statements join with their tables.
//!
//! `union all select` works on both servers, and was faster than `values` and JSON. A lock is taken only through such a
//! join: for `id in (…)` the server may read the whole index of a small table, and wait for rows that were not asked for.

use super::literal;

/// A derived table of some rows with named columns.
pub(super) struct RowSource {
    text: String,
    columns: &'static [&'static str],
    rows: usize,
}

impl RowSource {
    pub(super) fn new(columns: &'static [&'static str]) -> RowSource {
        RowSource { text: String::from("("), columns, rows: 0 }
    }

    /// Adds a row. `push` appends the value of each column, by its index.
    pub(super) fn push(&mut self, mut push: impl FnMut(&mut String, usize)) {
        self.text.push_str(if self.rows == 0 { "select " } else { " union all select " });
        for (index, column) in self.columns.iter().enumerate() {
            if index > 0 {
                self.text.push(',');
            }
            push(&mut self.text, index);
            // The first row names the columns. Some names are words of one server or the other.
            if self.rows == 0 {
                self.text.push_str(" `");
                self.text.push_str(column);
                self.text.push('`');
            }
        }
        self.rows += 1;
    }

    /// Returns the derived table under the alias `w`. It must have a row.
    pub(super) fn sql(&self) -> String {
        format!("{}) w", self.text)
    }

    /// Replaces the word `$rows` in a statement by the derived table.
    pub(super) fn within(&self, statement: &str) -> String {
        statement.replace("$rows", &self.sql())
    }
}

/// Returns a source of ids.
pub(super) fn ids<'a>(ids: impl Iterator<Item = &'a [u8]>) -> RowSource {
    let mut source = RowSource::new(&["id"]);
    for id in ids {
        source.push(|text, _| literal::push_bytes(text, id));
    }
    source
}

/// Returns a source of numbers.
pub(super) fn numbers(numbers: impl Iterator<Item = i64>) -> RowSource {
    let mut source = RowSource::new(&["seq"]);
    for number in numbers {
        source.push(|text, _| literal::push_i64(text, number));
    }
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_row_names_the_columns() {
        let source = numbers([1, -2].into_iter());
        assert_eq!(
            source.within("select * from $rows"),
            "select * from (select 1 `seq` union all select -2) w"
        );
    }
}
