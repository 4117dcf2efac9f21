//! What an error of sqlx means to the one who may run the transaction again. SeaORM's errors hold sqlx's.

use ibid_core::sql::{Fault, SqlError};
use sqlx::Error;

use super::sqlite_failure;

/// A failure of PostgreSQL. A pool that gave no connection in time is `Lost`, although nothing was sent.
pub(super) fn of_postgres(error: Error) -> SqlError {
    SqlError::new(postgres_fault(&error), error)
}

/// A failure of SQLite. A pool that gave no connection in time is `Lost`, although nothing was written.
pub(super) fn of_sqlite(error: Error) -> SqlError {
    SqlError::new(sqlite_fault(&error), error)
}

pub(super) fn postgres_fault(error: &Error) -> Fault {
    match error {
        Error::Database(reported) => SqlError::with_state(reported.code().as_deref(), "").fault(),
        other => driver_fault(other),
    }
}

pub(super) fn sqlite_fault(error: &Error) -> Fault {
    match error {
        Error::Database(reported) => match reported.code().and_then(|code| code.parse().ok()) {
            Some(code) => sqlite_failure::fault(code),
            None => Fault::Wrong,
        },
        other => driver_fault(other),
    }
}

/// A value that does not fit is our mistake, before or after the server's work; all else is about the connection.
fn driver_fault(error: &Error) -> Fault {
    match error {
        Error::Encode(_)
        | Error::Decode(_)
        | Error::ColumnDecode { .. }
        | Error::ColumnNotFound(_)
        | Error::ColumnIndexOutOfBounds { .. }
        | Error::TypeNotFound { .. }
        | Error::RowNotFound
        | Error::InvalidArgument(_)
        | Error::InvalidSavePointStatement
        | Error::Configuration(_) => Fault::Wrong,
        _ => Fault::Lost,
    }
}
