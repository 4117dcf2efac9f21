//! Values that a column of one database holds and that of another one does not, found before a copy closes its source.

use ibid_core::sql::Dialect;
use serde_json::Value;

/// Returns why the database can't hold one of the columns of a row, a JSON object; `None` if it can.
pub(super) fn find_misfit(dialect: Dialect, row: &Value) -> Option<String> {
    let columns = row.as_object()?;
    let texts = || columns.iter().filter_map(|(name, value)| Some((&**name, value.as_str()?)));
    let why = match dialect {
        Dialect::Mysql => texts().find_map(|(name, text)| {
            let (_, bytes_max) = MYSQL_BYTES_MAX.into_iter().find(|(column, _)| *column == name)?;
            let bytes = if MYSQL_HEX.contains(&name) { text.len() / 2 } else { text.len() };
            (bytes > bytes_max)
                .then(|| format!("`{name}` has {bytes} bytes, and a column of MySQL holds {bytes_max}"))
        }),
        // PostgreSQL refuses the character, and the JSON functions of SQLite end a text at it.
        Dialect::Postgres | Dialect::Sqlite => texts()
            .find(|(_, text)| text.contains('\0'))
            .map(|(name, _)| format!("`{name}` has a NUL character, which this store can't hold"))
            .or_else(|| find_long_event(dialect, row)),
    }?;
    let whose = ["id", "event", "name"].into_iter().find_map(|name| columns.get(name)?.as_str());
    let whose: String = whose.unwrap_or_default().chars().take(SHOWN_CHARS).collect();
    Some(format!("{why} (the row of `{}`)", whose.escape_debug()))
}

/// Returns why PostgreSQL can't find an event again: it has no room for its index entry.
fn find_long_event(dialect: Dialect, row: &Value) -> Option<String> {
    let bytes = row.get("source")?.as_str()?.len() + row.get("event")?.as_str()?.len();
    (dialect == Dialect::Postgres && bytes > POSTGRES_INDEX_BYTES_MAX).then(|| {
        format!("`event` has {bytes} bytes, and an index of PostgreSQL holds {POSTGRES_INDEX_BYTES_MAX}")
    })
}

/// Bytes of the columns of MySQL that are shorter than those of other databases. A column has one name in all tables.
const MYSQL_BYTES_MAX: [(&str, usize); 21] = [
    ("tenant", 255),
    ("method", 255),
    ("key", 255),
    ("path", BLOB),
    ("fingerprint", 64),
    ("note", MEDIUMBLOB),
    ("lines", MEDIUMBLOB),
    ("sealed_by", 255),
    ("what", 64),
    ("detail", BLOB),
    ("source", 255),
    ("event", 1024),
    ("name", 512),
    ("kind", 512),
    ("aggregate", 512),
    ("downstream_key", 512),
    ("rules", BLOB),
    ("trace", 512),
    ("provider_id", 516),
    ("last_error", 1028),
    ("body", BLOB),
];

/// Columns whose bytes are hexadecimal digits.
const MYSQL_HEX: [&str; 3] = ["fingerprint", "lines", "body"];

const BLOB: usize = 65_535;
const MEDIUMBLOB: usize = (16 << 20) - 1;

/// An index entry has 2,704 bytes at most, lengths and padding included.
const POSTGRES_INDEX_BYTES_MAX: usize = 2_680;

/// Characters of a name in a message. It may be as long as what is refused.
const SHOWN_CHARS: usize = 64;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A column of MySQL that is changed or added needs its limit here.
    #[test]
    fn the_limits_are_those_of_the_schema_of_mysql() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/mysql/schema");
        let mut checked = 0;
        for file in ["records.sql", "outbox.sql", "evidence.sql"] {
            let text = std::fs::read_to_string(folder.join(file)).expect("a schema");
            for line in text.lines().filter_map(|line| line.strip_prefix("  ")) {
                let mut words = line.split_whitespace();
                let (Some(name), Some(kind)) = (words.next(), words.next()) else { continue };
                let kind = kind.trim_end_matches(',');
                let bytes = match kind.strip_prefix("varbinary(").and_then(|rest| rest.strip_suffix(')')) {
                    Some(bytes) => bytes.parse().expect("a number"),
                    None if kind == "blob" => BLOB,
                    None if kind == "mediumblob" => MEDIUMBLOB,
                    None => continue,
                };
                // Policies and settings are not rows of a copy.
                let name = name.trim_matches('`');
                if ["data", "value"].contains(&name) || name == "name" && bytes == 255 {
                    continue;
                }
                assert!(MYSQL_BYTES_MAX.contains(&(name, bytes)), "`{name}` of {bytes} bytes in {file}");
                checked += 1;
            }
        }
        assert!(checked >= MYSQL_BYTES_MAX.len(), "the schema is elsewhere");
    }
}
