//! What an error of PostgreSQL means to whoever must act on it. The only place that reads SQLSTATEs.

use ibid_core::store::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::KIND;

/// How far a failure reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Somebody held a row for too long, or two waited for each other. Others may go through.
    Contended,
    /// What was written itself: it alone can't be stored, and others may.
    One,
    /// The connection or the server: everything fails now, and may not in a moment. What was sent may be written.
    Moment,
    /// The database: everything fails until a person has looked.
    Lasting,
}

/// How far `error` reaches.
pub(super) fn reach(error: &Error) -> Reach {
    match error.code() {
        Some(code) => of_code(code),
        // Not the server's: the connection broke, or the answer can't be read.
        None => Reach::Moment,
    }
}

fn of_code(code: &SqlState) -> Reach {
    match *code {
        SqlState::LOCK_NOT_AVAILABLE | SqlState::T_R_DEADLOCK_DETECTED | SqlState::T_R_SERIALIZATION_FAILURE => {
            return Reach::Contended;
        }
        // A primary that became a standby, or the other way round a moment from now.
        SqlState::READ_ONLY_SQL_TRANSACTION
        // Behind a pooler the next statement may meet another session; a migration may have passed by.
        | SqlState::INVALID_SQL_STATEMENT_NAME
        | SqlState::DUPLICATE_PSTATEMENT
        | SqlState::FEATURE_NOT_SUPPORTED => return Reach::Moment,
        _ => {}
    }
    match code.code().get(..2) {
        // Of the connection, of resources (disk, memory, connections), of an operator, of the operating system.
        Some("08" | "53" | "57" | "58") => Reach::Moment,
        // Of the data, of a constraint that somebody added, of a limit, and what the server itself did not foresee.
        Some("22" | "23" | "54" | "XX") => Reach::One,
        _ => Reach::Lasting,
    }
}

/// Whether another wrote a row of the same key at the same moment.
pub(super) fn is_rival(error: &Error) -> bool {
    error.code() == Some(&SqlState::UNIQUE_VIOLATION)
}

/// Whether a session was refused, perhaps for the settings that it was to start with: poolers say so with codes of the
/// protocol, of missing features or of bad values.
pub(super) fn refuses_settings(error: &Error) -> bool {
    error
        .as_db_error()
        .is_some_and(|error| matches!(error.code().code().get(..2), Some("08" | "0A" | "22" | "42")))
}

/// Whether the connection should not be used again.
pub(super) fn spoils_connection(error: &Error) -> bool {
    // What the server did not foresee may be about what this connection remembers: types that were made anew have other
    // numbers.
    let unforeseen = error.code().is_some_and(|code| code.code().starts_with("XX"));
    unforeseen || !matches!(reach(error), Reach::Contended | Reach::One)
}

/// The error as the caller of a store sees it.
pub(super) fn store_error(op: &'static str, error: Error) -> StoreError {
    match reach(&error) {
        Reach::Contended | Reach::Moment => StoreError::transient(KIND, op, error),
        Reach::One | Reach::Lasting => StoreError::lasting(KIND, op, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_told_apart_from_what_is_wrong() {
        let of = |code| of_code(&SqlState::from_code(code));
        for contended in ["55P03", "40P01", "40001"] {
            assert_eq!(of(contended), Reach::Contended, "{contended}");
        }
        for passing in ["57P01", "57P02", "57P03", "57014", "53300", "53100", "08006", "25006", "58030"] {
            assert_eq!(of(passing), Reach::Moment, "{passing}");
        }
        for one in ["22021", "23514", "54000", "XX000"] {
            assert_eq!(of(one), Reach::One, "{one}");
        }
        for lasting in ["42P01", "42501", "28P01", "3D000"] {
            assert_eq!(of(lasting), Reach::Lasting, "{lasting}");
        }
    }
}
