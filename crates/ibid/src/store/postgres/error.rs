//! The meaning of PostgreSQL's errors for callers. Only this file reads SQLSTATEs.

use ibid_core::scope::RecordId;
use ibid_core::store::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::KIND;

/// The extent of a failure: the changes that it affects, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostgresErrorScope {
    /// Another transaction held a lock for too long, or two waited for each other. Other changes may succeed.
    Contended,
    /// This change cannot be stored. Other changes can.
    One,
    /// The connection or the server fails now, and may work in a moment. The statement may have been written.
    Moment,
    /// The database refuses everything until an operator has acted.
    Lasting,
}

/// Returns the scope of `error`.
pub(super) fn scope_of(error: &Error) -> PostgresErrorScope {
    match error.code() {
        Some(code) => of_code(code),
        // The server did not report it: the connection broke, or the reply cannot be read.
        None => PostgresErrorScope::Moment,
    }
}

fn of_code(code: &SqlState) -> PostgresErrorScope {
    match *code {
        SqlState::LOCK_NOT_AVAILABLE | SqlState::T_R_DEADLOCK_DETECTED | SqlState::T_R_SERIALIZATION_FAILURE => {
            return PostgresErrorScope::Contended;
        }
        // A primary that became a standby, or the other way round a moment from now.
        SqlState::READ_ONLY_SQL_TRANSACTION
        // Behind a pooler the next statement may meet another session; a migration may have passed by.
        | SqlState::INVALID_SQL_STATEMENT_NAME
        | SqlState::DUPLICATE_PSTATEMENT
        | SqlState::FEATURE_NOT_SUPPORTED => return PostgresErrorScope::Moment,
        _ => {}
    }
    match code.code().get(..2) {
        // Of the connection, of resources (disk, memory, connections), of an operator, of the operating system.
        Some("08" | "53" | "57" | "58") => PostgresErrorScope::Moment,
        // Of the data, of a constraint that an operator added, of a limit, and internal errors of the server.
        Some("22" | "23" | "54" | "XX") => PostgresErrorScope::One,
        _ => PostgresErrorScope::Lasting,
    }
}

/// Returns whether an insert failed because its id is taken.
pub(super) fn is_taken(error: &Error) -> bool {
    error.code() == Some(&SqlState::UNIQUE_VIOLATION)
}

/// Returns the id of the record whose insert failed because another process inserted it at the same moment. The server names
/// it in the detail of the error, in its own language: `Key (id)=(…) already exists.`
pub(super) fn violated_id(error: &Error) -> Option<RecordId> {
    let error = error.as_db_error().filter(|error| *error.code() == SqlState::UNIQUE_VIOLATION)?;
    error.detail()?.split(['(', ')']).find_map(parse_uuid)
}

fn parse_uuid(text: &str) -> Option<RecordId> {
    let digits: String = text.chars().filter(|char| *char != '-').collect();
    let is_uuid = text.len() == 36 && digits.len() == 2 * RecordId::LEN;
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| is_uuid)?;
    Some(RecordId::from_bytes(number.to_be_bytes()))
}

/// Returns the location of the row that a statement waited for in vain. The server names it in the context of the error, in
/// its own language: `while updating tuple (12,3) in relation …`.
pub(super) fn locked_tid(error: &Error) -> Option<String> {
    let context = error.as_db_error()?.where_()?;
    let (start, _) = context
        .match_indices('(')
        .find(|(at, _)| context[at + 1..].starts_with(|char: char| char.is_ascii_digit()))?;
    let end = context[start..].find(')')?;
    Some(context[start..=start + end].to_owned())
}

/// Returns whether the server ended a statement because it took too long.
pub(super) fn is_timeout(error: &Error) -> bool {
    error.code() == Some(&SqlState::QUERY_CANCELED)
}

/// Returns whether a session was refused, perhaps because of the settings that it was to start with: poolers use codes of
/// the protocol, of missing features or of bad values.
pub(super) fn refuses_settings(error: &Error) -> bool {
    error
        .as_db_error()
        .is_some_and(|error| matches!(error.code().code().get(..2), Some("08" | "0A" | "22" | "42")))
}

/// Returns whether the connection should not be used again.
pub(super) fn spoils_connection(error: &Error) -> bool {
    // An internal error may come from something that this connection remembers: types that were created again have other
    // numbers.
    let unforeseen = error.code().is_some_and(|code| code.code().starts_with("XX"));
    // After a time-out the session is as good as before.
    unforeseen
        || !is_timeout(error)
            && !matches!(scope_of(error), PostgresErrorScope::Contended | PostgresErrorScope::One)
}

/// Returns the error as the caller of a store sees it.
pub(super) fn store_error(op: &'static str, error: Error) -> StoreError {
    match scope_of(&error) {
        PostgresErrorScope::Contended | PostgresErrorScope::Moment => StoreError::transient(KIND, op, error),
        PostgresErrorScope::One | PostgresErrorScope::Lasting => StoreError::lasting(KIND, op, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_code_tells_how_far_it_reaches() {
        let of = |code| of_code(&SqlState::from_code(code));
        for contended in ["55P03", "40P01", "40001"] {
            assert_eq!(of(contended), PostgresErrorScope::Contended, "{contended}");
        }
        for passing in ["57P01", "57P02", "57P03", "57014", "53300", "53100", "08006", "25006", "58030"] {
            assert_eq!(of(passing), PostgresErrorScope::Moment, "{passing}");
        }
        for one in ["22021", "23514", "54000", "XX000"] {
            assert_eq!(of(one), PostgresErrorScope::One, "{one}");
        }
        for lasting in ["42P01", "42501", "28P01", "3D000"] {
            assert_eq!(of(lasting), PostgresErrorScope::Lasting, "{lasting}");
        }
    }

    #[test]
    fn an_id_is_parsed_as_the_server_writes_it() {
        let id = parse_uuid("00000000-0000-0000-0000-0000000000ff").expect("a uuid");
        assert_eq!(id.as_bytes()[15], 255);
        for wrong in ["", "id", "00000000-0000-0000-0000-0000000000f", "0000000000000000000000000000000000ff"]
        {
            assert_eq!(parse_uuid(wrong), None, "{wrong}");
        }
    }
}
