//! The steps of a worker's look on MySQL, where one statement can't lock, change and return rows.
//!
//! A look runs under READ COMMITTED, so that it locks the rows that it found and no gaps between rows.

use std::collections::HashMap;

use ibid_core::sql::Type::{Bool, I64, Text};
use ibid_core::sql::{Param, SqlError, SqlTx, Statement};

use super::statements::{TURNS_MAX, Turns};

/// Unblocks the first open effect of each aggregate that has a turn, and deletes the turns.
pub(super) async fn give_turns(tx: &mut dyn SqlTx, limit: Param<'_>) -> Result<Turns, SqlError> {
    let rows = tx.query(&TURNS, &[limit]).await?;
    let more = rows.len() >= TURNS_MAX as usize;
    let mut aggregates: HashMap<(String, String), Vec<i64>> = HashMap::new();
    for mut row in rows {
        let id = row.i64()?;
        aggregates.entry((row.text()?, row.text()?)).or_default().push(id);
    }
    let mut handled = Vec::new();
    for ((tenant, aggregate), ids) in aggregates {
        if unblock_first(tx, &tenant, &aggregate).await? {
            handled.extend(ids);
        }
    }
    if !handled.is_empty() {
        tx.execute(&TURNS_END, &[Param::Text(&json(&handled))]).await?;
    }
    Ok(Turns { any: !handled.is_empty(), more: more && !handled.is_empty() })
}

/// Returns `false` if another transaction has locked the effect. Its turns must stay, because that transaction may roll back.
async fn unblock_first(tx: &mut dyn SqlTx, tenant: &str, aggregate: &str) -> Result<bool, SqlError> {
    let first = tx.query(&FIRST_OPEN, &[Param::Text(tenant), Param::Text(aggregate)]).await?;
    let Some(mut row) = first.into_iter().next() else { return Ok(true) };
    let (seq, is_blocked) = (Param::I64(row.i64()?), row.bool()?);
    if !is_blocked {
        return Ok(true);
    }
    if tx.query(&BLOCKED_LOCK, &[seq]).await?.is_empty() {
        return Ok(false);
    }
    tx.execute(&UNBLOCK, &[seq]).await?;
    Ok(true)
}

/// `Param` has no array type, so numbers are passed as JSON.
fn json(numbers: &[i64]) -> String {
    serde_json::to_string(numbers).expect("numbers are JSON")
}

static TURNS: Statement =
    Statement { text: include_str!("sql/mysql/turns.sql"), columns: &[I64, Text, Text] };
static FIRST_OPEN: Statement =
    Statement { text: include_str!("sql/mysql/first_open.sql"), columns: &[I64, Bool] };
static BLOCKED_LOCK: Statement =
    Statement { text: include_str!("sql/mysql/blocked_lock.sql"), columns: &[I64] };
static UNBLOCK: Statement = Statement { text: include_str!("sql/mysql/unblock.sql"), columns: &[] };
static TURNS_END: Statement = Statement { text: include_str!("sql/mysql/turns_end.sql"), columns: &[] };
