//! MySQL's way to remove the content of a generation without gap locks.
//!
//! A caller's transaction runs at REPEATABLE READ by default. There a `delete` or `update` by a part of a key also locks the gap
//! behind the rows that it finds, or the gap in which it finds none, and the last gap of a table has no end. T1 (a caller) replaces
//! an expired generation and works on; T2 (a node) stores a large response, whose row belongs into that gap, and waits for T1 until
//! it gives up. So rows are found by plain reads, which lock nothing, and written by their whole primary key, which locks these
//! rows only.

use ibid_core::record::Record;
use ibid_core::scope::RecordId;
use ibid_core::sql::Type::I64;
use ibid_core::sql::{Param, SqlError, SqlTx, Statement};
use serde_json::json;

use super::{BODY_CLEAR, PAYLOAD_CLEAR, body_key, version_params};

/// The bodies of a generation.
pub(super) enum BodyKinds {
    /// The codes of their kinds.
    Known(Vec<i64>),
    /// The transaction's snapshot is older than the record's version, and so perhaps older than a body.
    Unknown,
}

/// Returns the bodies of the generation that the record has. It must be called before the record is written: the transaction then
/// sees the version that it wrote, however old its snapshot is.
pub(super) async fn find_bodies(
    tx: &mut dyn SqlTx,
    id: &RecordId,
    before: &Record,
) -> Result<BodyKinds, SqlError> {
    let [id, birth, born_at] = body_key(id, before.birth, before.created_at);
    let [count, nonce] = version_params(before.version);
    let rows = tx.query(&BODY_KINDS, &[id, birth, born_at, count, nonce]).await?;
    if rows.is_empty() {
        return Ok(BodyKinds::Unknown);
    }
    let kinds = rows.into_iter().filter_map(|mut row| row.maybe_i64().transpose());
    kinds.collect::<Result<_, _>>().map(BodyKinds::Known)
}

/// Deletes the bodies of a generation. The transaction has locked the record, so there are no others.
pub(super) async fn clear_bodies(
    tx: &mut dyn SqlTx,
    id: &RecordId,
    before: &Record,
    kinds: BodyKinds,
) -> Result<(), SqlError> {
    let [id, birth, born_at] = body_key(id, before.birth, before.created_at);
    match kinds {
        BodyKinds::Unknown => tx.execute(&BODY_CLEAR.mysql, &[id, birth, born_at]).await,
        BodyKinds::Known(kinds) => {
            // A response, a request, and one for each recovery point.
            for kind in kinds {
                tx.execute(&BODY_DELETE, &[id, birth, born_at, Param::I64(kind)]).await?;
            }
            Ok(())
        }
    }
}

/// Drops payload and result of the ended effects of a record. The reaper does the same when the record goes, so it takes those that
/// ended after the transaction's snapshot.
pub(super) async fn clear_payloads(tx: &mut dyn SqlTx, id: &RecordId) -> Result<(), SqlError> {
    let rows = tx.query(&PAYLOADS, &[Param::Bytes(id.as_bytes())]).await?;
    let numbers = rows.into_iter().map(|mut row| row.i64()).collect::<Result<Vec<_>, _>>()?;
    match numbers.is_empty() {
        true => Ok(()),
        false => tx.execute(&PAYLOAD_CLEAR.mysql, &[Param::Text(&json!(numbers).to_string())]).await,
    }
}

static BODY_KINDS: Statement = Statement { text: include_str!("body_kinds.sql"), columns: &[I64] };
static BODY_DELETE: Statement = Statement { text: include_str!("body_delete.sql"), columns: &[] };
static PAYLOADS: Statement = Statement { text: include_str!("payloads.sql"), columns: &[I64] };
