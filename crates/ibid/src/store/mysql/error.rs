//! The meaning of MySQL's and MariaDB's errors for callers. Only this file reads error numbers.

use ibid_core::sql::{SqlError, SqlFault};
use ibid_core::store::StoreError;
use mysql_async::Error;

use super::KIND;

/// The extent of a failure: the changes that it affects, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MysqlErrorScope {
    /// Another transaction held a lock for too long, or two waited for each other. After a rollback nothing is written, and
    /// other changes may succeed.
    Contended,
    /// This change cannot be stored. Other changes can.
    One,
    /// The connection or the server fails now, and may work in a moment. The statement may have been written.
    Moment,
    /// The database refuses everything until an operator has acted.
    Lasting,
}

/// Returns the scope of `error`.
pub(super) fn scope_of(error: &Error) -> MysqlErrorScope {
    match error {
        Error::Server(error) => of_number(error.code),
        // The connection broke, or the reply cannot be read.
        _ => MysqlErrorScope::Moment,
    }
}

fn of_number(number: u16) -> MysqlErrorScope {
    match number {
        // Lock wait, deadlock, `nowait` on MySQL, a row that changed or a table that was rebuilt since the snapshot, and a commit
        // that group replication refused.
        1205 | 1213 | 3572 | 1020 | 1412 | 3101 => MysqlErrorScope::Contended,
        // Of the data: null, duplicate, out of range, not a value, too long, foreign keys, sums, a check that an operator
        // added, a row or a packet that is too large.
        1048 | 1062 | 1118 | 1153 | 1216 | 1217 | 1264 | 1292 | 1366 | 1406 | 1451 | 1452 | 1690 | 3819 | 4025 => {
            MysqlErrorScope::One
        }
        // Read-only: a primary that became a replica, or the other way round a moment from now.
        1290 | 1792 | 1836
        // Files of the server, such as temporary tables.
        | 1..=999
        // Disk (also at the commit, which may have happened), memory and connections; shutdown; network; killed; out of time.
        | 1021 | 1026 | 1028 | 1030 | 1037 | 1040 | 1041 | 1047 | 1053 | 1077..=1080 | 1114 | 1152 | 1158..=1161 | 1180
        | 1184 | 1203 | 1226 | 1317 | 1927 | 1969 | 3024 | 4031 => MysqlErrorScope::Moment,
        _ => MysqlErrorScope::Lasting,
    }
}

/// Returns whether two transactions waited for each other, and the server rolled this one back.
pub(super) fn is_deadlock(error: &Error) -> bool {
    matches!(error, Error::Server(error) if error.code == 1213)
}

/// Returns whether another session held a lock for too long.
pub(super) fn is_lock_wait(error: &Error) -> bool {
    matches!(error, Error::Server(error) if error.code == 1205)
}

/// Returns whether the server ended a statement because it took too long.
pub(super) fn is_timeout(error: &Error) -> bool {
    matches!(error, Error::Server(error) if matches!(error.code, 1969 | 3024))
}

/// Returns whether a row of the application refers to the record.
pub(super) fn is_held(error: &Error) -> bool {
    matches!(error, Error::Server(error) if matches!(error.code, 1217 | 1451))
}

/// Returns whether the server refuses user, password or database.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Server(error) if matches!(error.code, 1044 | 1045 | 1049 | 1130 | 1251 | 1698 | 3118 | 3159))
}

/// Returns whether the user lacks a global privilege.
pub(super) fn is_forbidden(error: &Error) -> bool {
    matches!(error, Error::Server(error) if error.code == 1227)
}

/// Returns whether the session is usable after a rollback.
pub(super) fn is_session_sound(error: &Error) -> bool {
    // A packet that is too large also ends the connection.
    let is_cut = matches!(error, Error::Server(error) if error.code == 1153);
    !is_cut
        && (matches!(scope_of(error), MysqlErrorScope::Contended | MysqlErrorScope::One) || is_timeout(error))
}

/// Returns the error as the caller of a store sees it.
pub(super) fn store_error(op: &'static str, error: Error) -> StoreError {
    match scope_of(&error) {
        // The session was rolled back.
        MysqlErrorScope::Contended => StoreError::transient(KIND, op, error).unwritten(),
        MysqlErrorScope::Moment => StoreError::transient(KIND, op, error),
        MysqlErrorScope::One | MysqlErrorScope::Lasting => StoreError::lasting(KIND, op, error),
    }
}

/// Returns the error of a statement in a transaction.
pub(super) fn sql_error(error: Error) -> SqlError {
    match &error {
        Error::Server(server) => SqlError::with_mysql_number(server.code, error),
        _ => SqlError::new(SqlFault::Lost, error),
    }
}

/// Returns the scope of a failure of a statement in a transaction.
pub(super) fn scope_of_sql(error: &SqlError) -> MysqlErrorScope {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Error>());
    // Without one, the row is not what its statement promises.
    source.map_or(MysqlErrorScope::One, scope_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_number_tells_how_far_it_reaches() {
        for (scope, numbers) in [
            (MysqlErrorScope::Contended, &[1205, 1213, 3572, 1020, 1412, 3101][..]),
            (MysqlErrorScope::One, &[1062, 1153, 1264, 1406, 1451, 1690]),
            (MysqlErrorScope::Moment, &[1026, 1040, 1053, 1180, 1290, 1114, 1317, 1927, 3024]),
            (MysqlErrorScope::Lasting, &[1045, 1064, 1142, 1146]),
        ] {
            for number in numbers {
                assert_eq!(of_number(*number), scope, "{number}");
            }
        }
    }
}
