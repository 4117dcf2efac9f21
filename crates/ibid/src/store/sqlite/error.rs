//! The meaning of SQLite's errors. The only place that reads result codes.

use ibid_core::store::StoreError;
use rusqlite::{Error, ErrorCode};

use super::NAME;

/// The extent of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SqliteErrorScope {
    /// One change or row: it can't be stored or read, and others can.
    One,
    /// The disk, a lock or memory: everything fails now, and may not in a moment.
    Moment,
    /// The file: everything fails until an operator has looked.
    Lasting,
}

/// Returns the scope of `error`.
pub(super) fn scope_of(error: &Error) -> SqliteErrorScope {
    match code(error) {
        Some(ErrorCode::TooBig | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch) => SqliteErrorScope::One,
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
            // Another process upgraded the schema; the statement is prepared again on the next call.
            | ErrorCode::SchemaChanged,
        ) => SqliteErrorScope::Moment,
        Some(_) => SqliteErrorScope::Lasting,
        // Not SQLite's: a row that this program can't read, or a value that it can't bind.
        None => SqliteErrorScope::One,
    }
}

/// Returns whether the connection should be opened again after `error`.
///
/// A lock that another connection holds says nothing about ours; after anything else ours may be in a state that only a
/// new one is surely not in.
pub(super) fn spoils_connection(error: &Error) -> bool {
    match scope_of(error) {
        SqliteErrorScope::One => false,
        SqliteErrorScope::Lasting => true,
        SqliteErrorScope::Moment => !matches!(
            code(error),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull)
        ),
    }
}

/// Converts an error to the one that the caller of a store gets.
pub(super) fn store_error(op: &'static str, error: Error) -> StoreError {
    match scope_of(&error) {
        SqliteErrorScope::Moment => StoreError::transient(NAME, op, error),
        SqliteErrorScope::One | SqliteErrorScope::Lasting => StoreError::lasting(NAME, op, error),
    }
}

/// Returns whether a COMMIT that failed with `error` surely wrote nothing: it was refused before it wrote. Anything else is
/// a lost reply, because frames that were written before the disk failed may be found when the file is opened next.
pub(super) fn refused_commit(error: &Error) -> bool {
    matches!(
        code(error),
        Some(ErrorCode::ConstraintViolation | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

fn code(error: &Error) -> Option<ErrorCode> {
    match error {
        Error::SqliteFailure(error, _) | Error::SqlInputError { error, .. } => Some(error.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    fn of(code: i32) -> Error {
        Error::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn what_may_pass_is_transient_and_what_is_wrong_is_not() {
        for passing in [ffi::SQLITE_BUSY, ffi::SQLITE_FULL, ffi::SQLITE_IOERR, ffi::SQLITE_IOERR_FSYNC] {
            assert!(store_error("commit", of(passing)).is_transient(), "{passing}");
        }
        for wrong in [ffi::SQLITE_TOOBIG, ffi::SQLITE_CONSTRAINT, ffi::SQLITE_CORRUPT, ffi::SQLITE_ERROR] {
            assert!(!store_error("commit", of(wrong)).is_transient(), "{wrong}");
        }
    }

    #[test]
    fn one_changes_fault_is_told_apart_from_the_files() {
        assert_eq!(scope_of(&of(ffi::SQLITE_TOOBIG)), SqliteErrorScope::One);
        assert_eq!(scope_of(&of(ffi::SQLITE_CONSTRAINT_TRIGGER)), SqliteErrorScope::One);
        assert_eq!(scope_of(&of(ffi::SQLITE_CORRUPT)), SqliteErrorScope::Lasting);
        assert_eq!(scope_of(&of(ffi::SQLITE_IOERR)), SqliteErrorScope::Moment);
    }

    #[test]
    fn a_commit_is_surely_undone_only_if_it_was_refused() {
        for refused in [ffi::SQLITE_CONSTRAINT_FOREIGNKEY, ffi::SQLITE_BUSY] {
            assert!(refused_commit(&of(refused)), "{refused}");
        }
        for lost in [ffi::SQLITE_IOERR, ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_FULL, ffi::SQLITE_CORRUPT] {
            assert!(!refused_commit(&of(lost)), "{lost}");
        }
    }

    #[test]
    fn only_a_broken_connection_is_given_up() {
        for harmless in [ffi::SQLITE_BUSY, ffi::SQLITE_FULL, ffi::SQLITE_TOOBIG] {
            assert!(!spoils_connection(&of(harmless)), "{harmless}");
        }
        for harmful in [ffi::SQLITE_IOERR, ffi::SQLITE_CORRUPT, ffi::SQLITE_NOMEM] {
            assert!(spoils_connection(&of(harmful)), "{harmful}");
        }
    }
}
