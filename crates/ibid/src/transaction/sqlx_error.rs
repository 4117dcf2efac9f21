//! Classifies sqlx errors by whether the transaction may be run again. SeaORM's errors wrap sqlx's.

use ibid_core::sql::{SqlError, SqlFault};
use sqlx::Error;
#[cfg(feature = "sqlx-mysql")]
use sqlx::mysql::MySqlDatabaseError;

use super::TxError;
use crate::driver::sqlite_error;

/// Converts the error of a caller's statement.
impl From<Error> for TxError {
    fn from(error: Error) -> TxError {
        failure(error).into()
    }
}

/// Wraps an error together with its fault.
pub(super) fn failure(error: Error) -> SqlError {
    SqlError::new(fault(&error), error)
}

/// Returns the fault of an error. A timeout of the pool is `Lost`, although nothing was sent.
pub(super) fn fault(error: &Error) -> SqlFault {
    match error {
        #[cfg(feature = "sqlx-mysql")]
        Error::Database(reported) if reported.try_downcast_ref::<MySqlDatabaseError>().is_some() => {
            // Most of MySQL's SQLSTATEs are `HY000`; the number tells.
            let number =
                reported.try_downcast_ref::<MySqlDatabaseError>().map_or(0, MySqlDatabaseError::number);
            SqlError::with_mysql_number(number, "").fault()
        }
        Error::Database(reported) => {
            let code = reported.code().unwrap_or_default();
            match code.parse() {
                // SQLite's result codes have fewer digits than a SQLSTATE.
                Ok(result) if code.len() < SQLSTATE_LEN => sqlite_error::fault(result),
                _ => SqlError::with_state(Some(&code), "").fault(),
            }
        }
        // A value that does not fit is a programming error.
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
        // All other errors are about the connection.
        _ => SqlFault::Lost,
    }
}

const SQLSTATE_LEN: usize = 5;
