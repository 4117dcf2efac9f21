//! Statements as text, with their values as literals.
//!
//! Bytes and text become hexadecimal literals, so nothing has to be escaped, and no character set or SQL mode changes their
//! meaning. The text protocol takes several statements in one packet, which prepared statements do not. Such a literal is
//! binary, and MySQL's `json_table` takes only text (error 3144), so statements convert their JSON.

use ibid_core::hex;
use ibid_core::sql::{Param, SqlError, Statement};

/// Returns a statement with numbered parameters as text with its values. Comments are left out.
pub(super) fn statement(text: &'static str, params: &[Param<'_>]) -> Result<String, SqlError> {
    let positional = Statement { text, columns: &[] }.positional();
    let values = positional.arrange(params)?;
    let (mut values, mut is_quoted) = (values.iter(), false);
    let mut sql = String::with_capacity(positional.text.len() + 16 * params.len());
    for char in positional.text.chars() {
        is_quoted ^= char == '\'';
        match values.as_slice().first().filter(|_| char == '?' && !is_quoted) {
            Some(value) => {
                push(&mut sql, value);
                values.next();
            }
            None => sql.push(char),
        }
    }
    Ok(sql)
}

/// Appends a value as a literal to `sql`.
pub(super) fn push(sql: &mut String, value: &Param<'_>) {
    match value {
        Param::Null(_) => sql.push_str("null"),
        Param::Bool(value) => sql.push(if *value { '1' } else { '0' }),
        Param::I64(value) => push_i64(sql, *value),
        Param::Text(value) => push_bytes(sql, value.as_bytes()),
        Param::Bytes(value) => push_bytes(sql, value),
    }
}

pub(super) fn push_i64(sql: &mut String, value: i64) {
    use std::fmt::Write as _;

    // Writing into a string cannot fail.
    let _ = write!(sql, "{value}");
}

pub(super) fn push_bytes(sql: &mut String, bytes: &[u8]) {
    sql.push_str("x'");
    hex::push(sql, bytes);
    sql.push('\'');
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ibid_core::sql::Type;

    use super::*;

    #[test]
    fn values_become_literals_that_need_no_escape() {
        let params = [
            Param::Bytes(b"\0'\\"),
            Param::Text("?1 ä"),
            Param::I64(i64::MIN),
            Param::Null(Type::I64),
            Param::Bool(true),
        ];
        let sql = statement("-- ?1\nselect ?2, '?', ?1, ?3, ?4, ?5, ?1", &params).unwrap();
        assert_eq!(sql, "select x'3f3120c3a4', '?', x'00275c', -9223372036854775808, null, 1, x'00275c'");
        assert!(statement("select ?6", &params).is_err(), "a parameter is missing");
    }

    /// MariaDB takes both, so no test on it would notice.
    #[test]
    fn every_statement_converts_its_json_to_text() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let folders = ["outbox/sql/mysql", "record_sql/mysql", "store/mysql/hot_path", "store/mysql/sql"];
        let mut tables = 0;
        for file in folders.iter().flat_map(|folder| source.join(folder).read_dir().expect("a folder")) {
            let path = file.expect("a file").path();
            let text = std::fs::read_to_string(&path).expect("a text");
            for (at, call) in text.match_indices("json_table(") {
                let argument = &text[at + call.len()..];
                assert!(argument.starts_with("convert(?"), "{}: {argument}", path.display());
                tables += 1;
            }
        }
        assert!(tables > 0, "the statements are elsewhere");
    }
}
