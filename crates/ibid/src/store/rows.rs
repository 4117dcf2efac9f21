//! Rows of a statement that only reads, as text: for a comparison with books that are text, too.

/// One row: the names of the columns, and what stands in each; none for null.
pub type EachRow<'a> = &'a mut (dyn FnMut(&[String], Vec<Option<String>>) -> Next + Send);

/// Whether there is need for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Go on.
    More,
    /// Enough was seen.
    Stop,
}

/// Why a statement gave no rows.
#[derive(Debug, thiserror::Error)]
pub enum RowsError<O: std::error::Error + 'static> {
    /// The database can't be reached or used.
    #[error(transparent)]
    Open(O),
    /// The statement is refused: it is wrong, it writes, or it is more than one.
    #[error("the statement is refused: {0}")]
    Refused(String),
    /// The database failed under way.
    #[error("the database failed while it was read")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}
