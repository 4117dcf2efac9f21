//! The steps of a worker's look on MySQL, where one statement can't lock, change and return rows.
//!
//! A look runs under READ COMMITTED, so that it locks the rows that it found and no gaps between rows.

use std::collections::HashMap;

use ibid_core::effect::EffectClaim;
use ibid_core::sql::Type::{Bool, I64, Text};
use ibid_core::sql::{Param, SqlError, SqlTx, Statement};

use super::statements::{TURNS_MAX, Turns, code};
use crate::record_sql::nonce_param;

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

/// Claims the oldest due effects of all kinds, and returns their numbers.
pub(super) async fn take(tx: &mut dyn SqlTx, claim: &EffectClaim) -> Result<Vec<i64>, SqlError> {
    let (from, to) = claim.reason.states();
    let mut due = Vec::new();
    for kind in &claim.kinds {
        let params = [Param::Text(kind), code(from), Param::I64(i64::from(claim.limit))];
        for mut row in tx.query(&TAKE_LOCK, &params).await? {
            let seq = row.i64()?;
            due.push((row.i64()?, seq));
        }
    }
    due.sort_unstable();
    due.truncate(claim.limit as usize);
    let seqs: Vec<i64> = due.into_iter().map(|(_, seq)| seq).collect();
    if !seqs.is_empty() {
        let is_try = Param::I64(i64::from(claim.reason.is_try()));
        tx.execute(&TAKE, &[Param::Text(&json(&seqs)), code(to), nonce_param(claim.nonce), is_try]).await?;
    }
    Ok(seqs)
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
static TAKE_LOCK: Statement =
    Statement { text: include_str!("sql/mysql/take_lock.sql"), columns: &[I64, I64] };
static TAKE: Statement = Statement { text: include_str!("sql/mysql/take.sql"), columns: &[] };
