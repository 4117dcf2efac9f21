//! Evidence from outside, in its own table. The order of columns is that of the `evidence_….sql` statements.

use std::time::Duration;

use ibid_core::evidence::{self, EventName, Evidence, EvidenceQuery, EvidenceStore, StoredEvidence};
use ibid_core::record::Nonce;
use ibid_core::row::{UnreadableRowError, bits, micros};
use ibid_core::sql::Param;
use ibid_core::store::{BoxFuture, Cursor, Page, StoreError};
use ibid_core::time::Timestamp;

use mysql_async::Error;

use super::connection::MysqlConnection;
use super::read::{retrying, statement};
use super::row::{self, DbRow};
use super::row_source::{self, RowSource};
use super::{KIND, MysqlCore, literal};
use crate::random;

impl EvidenceStore for MysqlCore {
    fn insert_evidence(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> BoxFuture<'_, Result<(StoredEvidence, bool), StoreError>> {
        const OP: &str = "store evidence";
        Box::pin(async move {
            let Some(found) = evidence::encode_evidence(&evidence) else {
                return Err(StoreError::lasting(KIND, OP, "it proves nothing").unwritten());
            };
            let EventName { source, event } = &evidence.name;
            let (id, nonce) = (evidence.about.id(), bits(random::nonce()));
            let params = [
                Param::Text(source),
                Param::Text(event),
                Param::Bytes(id.as_bytes()),
                Param::maybe_i64(evidence.owner.map(bits)),
                Param::I64(micros(evidence.age)),
                Param::I64(micros(keep_for)),
                Param::Bytes(&found),
                Param::I64(nonce),
            ];
            let rows = self.ask(OP, include_str!("sql/evidence_add.sql"), &params).await?;
            let row = rows.first().ok_or_else(|| StoreError::transient(KIND, OP, "it comes and goes"))?;
            Ok((read_evidence(OP, row)?.1, row::number(OP, row, 8)? == nonce))
        })
    }

    fn open_evidence(
        &self,
        which: EvidenceQuery,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredEvidence>, StoreError>> {
        const OP: &str = "find evidence";
        Box::pin(async move {
            // One too many tells that there is a next page.
            let (after, most) = (after.and_then(|cursor| cursor.as_i64()).unwrap_or(0), i64::from(limit) + 1);
            let (after, most) = (Param::I64(after), Param::I64(most));
            let rows = match which {
                EvidenceQuery::Of(id) => {
                    let params = [after, most, Param::Bytes(id.as_bytes())];
                    self.ask(OP, include_str!("sql/evidence_of.sql"), &params).await?
                }
                EvidenceQuery::All => {
                    self.ask(OP, include_str!("sql/evidence_after.sql"), &[after, most]).await?
                }
            };
            let items = rows.iter().map(|row| read_evidence(OP, row)).collect::<Result<Vec<_>, _>>()?;
            let page = Page::new(items, limit, |(seq, _)| Cursor::of_i64(*seq));
            Ok(Page { items: page.items.into_iter().map(|(_, item)| item).collect(), next: page.next })
        })
    }

    fn dismiss_evidence(&self, names: Vec<EventName>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            if names.is_empty() {
                return Ok(());
            }
            let mut source = RowSource::new(&["source", "event"]);
            for name in &names {
                source.push(|text, column| {
                    let part = if column == 0 { &name.source } else { &name.event };
                    literal::push_bytes(text, part.as_bytes());
                });
            }
            let text = source.within(include_str!("sql/evidence_dismiss.sql"));
            retrying!(self, "dismiss evidence", |connection| connection.run(&text)).map(drop)
        })
    }

    fn purge_evidence(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        const OP: &str = "purge evidence";
        Box::pin(async move {
            let text =
                statement(OP, include_str!("sql/evidence_purge.sql"), &[Param::I64(i64::from(limit))])?;
            retrying!(self, OP, |connection| purge(connection, &text))
        })
    }
}

/// Deletes the evidence that the statement finds, and returns how much.
async fn purge(connection: &mut MysqlConnection, text: &str) -> Result<u64, Error> {
    let rows = connection.begin_with(text).await?;
    if !rows.is_empty() {
        let source = row_source::numbers(rows.iter().filter_map(|row| row.first().and_then(row::integer)));
        connection.run(&source.within(include_str!("sql/evidence_delete.sql"))).await?;
    }
    connection.end("commit").await?;
    Ok(rows.len() as u64)
}

/// Reads evidence and its position.
fn read_evidence(op: &'static str, row: &DbRow) -> Result<(i64, StoredEvidence), StoreError> {
    let decoded = evidence::decode_evidence(row::id(op, row, 3)?, &row::bytes(op, row, 7)?);
    let (about, what) =
        decoded.ok_or_else(|| StoreError::lasting(KIND, op, UnreadableRowError("not evidence")))?;
    let evidence = Evidence {
        name: EventName { source: row::text(op, row, 1)?, event: row::text(op, row, 2)? },
        about,
        owner: row::optional(op, row, 4)?.map(|bits| Nonce(bits.cast_unsigned())),
        what,
        age: Duration::ZERO,
    };
    let as_of = Timestamp::from_micros(row::number(op, row, 5)?);
    Ok((row::number(op, row, 0)?, StoredEvidence { evidence, as_of, open: row::number(op, row, 6)? != 0 }))
}
