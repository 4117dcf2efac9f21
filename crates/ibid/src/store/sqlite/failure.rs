//! What an error of SQLite means to whoever must act on it. The only place that reads result codes.

use ibid_core::store::StoreError;
use rusqlite::{Error, ErrorCode};

use super::KIND;

/// How far a failure reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// What was written itself: it alone can't be stored, and others may.
    One,
    /// The disk, a lock or memory: everything fails now, and may not in a moment.
    Moment,
    /// The file: everything fails until a person has looked.
    Lasting,
}

/// How far `error` reaches.
pub(super) fn reach(error: &Error) -> Reach {
    match error.sqlite_error_code() {
        Some(ErrorCode::TooBig | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch) => Reach::One,
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure
            | ErrorCode::OutOfMemory
            | ErrorCode::OperationInterrupted
            | ErrorCode::CannotOpen
            | ErrorCode::FileLockingProtocolFailed
            // A file system that was remounted read-only comes back as it went.
            | ErrorCode::ReadOnly
            // Another process upgraded the schema; the statement is prepared anew on the next call.
            | ErrorCode::SchemaChanged,
        ) => Reach::Moment,
        Some(_) => Reach::Lasting,
        // Not SQLite's: a row that this program can't read, or a value that it can't bind.
        None => Reach::One,
    }
}

/// Whether the connection should be opened anew after `error`.
///
/// A lock that somebody else holds says nothing about our connection; after anything else it may be in a state that
/// only a new one is surely not in.
pub(super) fn spoils_connection(error: &Error) -> bool {
    match reach(error) {
        Reach::One => false,
        Reach::Lasting => true,
        Reach::Moment => !matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull)
        ),
    }
}

/// The error as the caller of a store sees it.
pub(super) fn store_error(op: &'static str, error: Error) -> StoreError {
    match reach(&error) {
        Reach::Moment => StoreError::transient(KIND, op, error),
        Reach::One | Reach::Lasting => StoreError::lasting(KIND, op, error),
    }
}
