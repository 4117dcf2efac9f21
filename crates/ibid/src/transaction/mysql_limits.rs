//! Limits of a session on MySQL or MariaDB while a transaction of ibid is open.
//!
//! A session's settings outlive its transactions there, so they are restored before one ends.

use std::time::Duration;

use ibid_core::sql::{Dialect, Param, SqlError, SqlTx, Statement};

/// Lets the server end a MySQL session that is idle for a lease with a record locked: looks skip a locked record, so no other
/// attempt could take it over. On PostgreSQL the statements that lock do this by themselves.
pub(super) async fn limit_idle_time(tx: &mut dyn SqlTx, lease: Duration) -> Result<(), SqlError> {
    match tx.dialect() {
        Dialect::Mysql => tx.execute(&IDLE_LIMIT, &[idle_seconds(lease)]).await,
        _ => Ok(()),
    }
}

/// As [`limit_idle_time`], and sets how long a statement waits for a lock: not at all on MariaDB, and one second on MySQL, the
/// least that it takes. [`restore_lock_wait`] must follow before the caller's statements.
pub(super) async fn limit_waits(tx: &mut dyn SqlTx, lease: Duration) -> Result<(), SqlError> {
    tx.execute(&WAIT_LIMITS, &[idle_seconds(lease)]).await
}

/// Restores the lock wait of the session.
pub(super) async fn restore_lock_wait(tx: &mut dyn SqlTx) -> Result<(), SqlError> {
    tx.execute(&LOCK_WAIT_RESTORE, &[]).await
}

/// Returns whether a statement changes settings of the session, which [`SETTINGS_RESTORE`] restores.
#[cfg(any(feature = "mysql-async", feature = "sqlx-mysql"))]
pub(super) fn changes_settings(statement: &Statement) -> bool {
    [&IDLE_LIMIT, &WAIT_LIMITS].iter().any(|limit| std::ptr::eq(*limit, statement))
}

fn idle_seconds(lease: Duration) -> Param<'static> {
    Param::I64(lease.as_secs().clamp(IDLE_MIN_S, IDLE_MAX_S).cast_signed())
}

/// Sets how long the session may be idle. If an earlier transaction could not restore the setting, the variable still has it.
macro_rules! idle_limit {
    () => {
        "set @ibid_wait_timeout = coalesce(@ibid_wait_timeout, @@session.wait_timeout), \
         session wait_timeout = cast(?1 as unsigned)"
    };
}

/// Restores the lock wait, if it was changed.
macro_rules! lock_wait_restore {
    () => {
        "set session innodb_lock_wait_timeout = \
         cast(coalesce(@ibid_lock_wait, @@session.innodb_lock_wait_timeout) as unsigned), @ibid_lock_wait = null"
    };
}

static IDLE_LIMIT: Statement = Statement { text: idle_limit!(), columns: &[] };

/// Only MariaDB reads `/*M! … */`.
static WAIT_LIMITS: Statement = Statement {
    text: concat!(
        idle_limit!(),
        ", @ibid_lock_wait = coalesce(@ibid_lock_wait, @@session.innodb_lock_wait_timeout), \
         session innodb_lock_wait_timeout = 1 /*M! - 1 */"
    ),
    columns: &[],
};

static LOCK_WAIT_RESTORE: Statement = Statement { text: lock_wait_restore!(), columns: &[] };

/// Restores the settings of the session.
#[cfg(any(feature = "mysql-async", feature = "sqlx-mysql"))]
pub(super) static SETTINGS_RESTORE: Statement = Statement {
    text: concat!(
        lock_wait_restore!(),
        ", session wait_timeout = cast(coalesce(@ibid_wait_timeout, @@session.wait_timeout) as unsigned), \
         @ibid_wait_timeout = null"
    ),
    columns: &[],
};

/// The smallest value that the server takes.
const IDLE_MIN_S: u64 = 1;

/// A day: the server takes a year, but no session should hold a record that long.
const IDLE_MAX_S: u64 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mysql_itself_takes_a_lock_wait_of_one_second() {
        let text = WAIT_LIMITS.text;
        let (start, end) = (text.find("/*M!").expect("a part of MariaDB"), text.find("*/").expect("its end"));
        let on_mysql = format!("{}{}", &text[..start], &text[end + 2..]);
        assert_eq!(
            on_mysql.rsplit_once("innodb_lock_wait_timeout").map(|(_, value)| value.trim()),
            Some("= 1")
        );
    }
}
