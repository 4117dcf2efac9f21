//! Read-only queries on a store's database: rows as text, for a comparison with files.

use std::ops::ControlFlow;

/// Called for each row with the column names and the values as text, `None` for null. `Break` ends the query.
pub type RowCallback<'a> = &'a mut (dyn FnMut(&[String], Vec<Option<String>>) -> ControlFlow<()> + Send);

/// The error of a read-only query.
#[derive(Debug, thiserror::Error)]
#[expect(clippy::exhaustive_enums, reason = "only crates of this project use it")]
pub enum ReadOnlyQueryError<O: std::error::Error + 'static> {
    /// The database cannot be opened.
    #[error(transparent)]
    Open(O),
    /// The statement is refused: it is wrong, it writes, or there are several.
    #[error("the statement is refused: {0}")]
    Refused(String),
    /// The database failed during the query.
    #[error("the database failed while it was read")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}
