//! What an error of sqlx means to the one who may run the transaction again. SeaORM's errors hold sqlx's.

use ibid_core::sql::{SqlError, SqlFault};
use sqlx::Error;

use super::{TxError, sqlite_error};

/// A caller's own statement.
impl From<Error> for TxError {
    fn from(error: Error) -> TxError {
        failure(error).into()
    }
}

/// An error with its meaning.
pub(super) fn failure(error: Error) -> SqlError {
    SqlError::new(fault(&error), error)
}

/// What this one means. A pool that gave no connection in time is `Lost`, although nothing was sent.
pub(super) fn fault(error: &Error) -> SqlFault {
    match error {
        Error::Database(reported) => {
            let code = reported.code().unwrap_or_default();
            match code.parse() {
                // SQLite's result codes have fewer digits than a SQLSTATE.
                Ok(result) if code.len() < SQLSTATE_LEN => sqlite_error::fault(result),
                _ => SqlError::with_state(Some(&code), "").fault(),
            }
        }
        // A value that does not fit is our mistake.
        Error::Encode(_)
        | Error::Decode(_)
        | Error::ColumnDecode { .. }
        | Error::ColumnNotFound(_)
        | Error::ColumnIndexOutOfBounds { .. }
        | Error::TypeNotFound { .. }
        | Error::RowNotFound
        | Error::InvalidArgument(_)
        | Error::InvalidSavePointStatement
        | Error::Configuration(_) => SqlFault::Wrong,
        // All else is about the connection.
        _ => SqlFault::Lost,
    }
}

const SQLSTATE_LEN: usize = 5;
