//! Dead letters for charges that the provider has and we don't: outbox rows that no worker executes.
//!
//! Each is written once per source and key, and stays until an operator discards it with a reason. The reaper keeps the row
//! of a discarded one, so it is not written again. A letter cannot be retried, because there is no call to make.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ibid_core::effect::{ERROR_BYTES_MAX, EffectRules, downstream_key, stored_text};
use ibid_core::key::Key;
use ibid_core::machine::EffectState;
use ibid_core::record::Nonce;
use ibid_core::scope::{Identity, Operation, RecordId, ScopeRule, Tenant};
use ibid_core::sql::{Dialect, Param, SqlError, SqlTx, Statement, Type};
use ibid_core::store::{Store, StoreError, Work};
use ibid_core::time::Timestamp;

use crate::compare::{DifferenceKind, LedgerDifference};

/// Effect kind of these dead letters. No handler may be registered for it.
pub const DEAD_LETTER_KIND: &str = "ibid.ledger";

/// Error of [`write_dead_letters`]. Batches before the error may be written; calling it again adds only what is missing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeadLetterError {
    /// The store has no outbox.
    #[error("the store has no outbox: it is no SQL store")]
    NoSql,
    /// The name of the source is not valid.
    #[error("`{0}` can't be the name of a source: 1 to 255 visible ASCII characters")]
    Source(String),
    /// The store could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Writes a dead letter for each difference that only the provider knows, and returns how many are new.
///
/// `source` names the provider.
///
/// # Errors
///
/// Fails if the store has no outbox or does not answer, or if `source` is not a valid name.
///
/// # Cancel safety
///
/// If the future is dropped midway, the dead letters of the batches before are stored, and those of the batch in flight all
/// or none. Call it again: it adds only what is missing.
pub async fn write_dead_letters(
    store: &dyn Store,
    source: &str,
    differences: &[LedgerDifference],
) -> Result<u64, DeadLetterError> {
    let sql = store.sql().ok_or(DeadLetterError::NoSql)?;
    let record = record_id(source).ok_or_else(|| DeadLetterError::Source(source.to_owned()))?;
    let letters: Vec<DeadLetter> =
        differences.iter().filter_map(|difference| DeadLetter::new(&record, source, difference)).collect();
    let written = Arc::new(AtomicU64::new(0));
    for batch in letters.chunks(BATCH_MAX) {
        let (batch, now, count) = (batch.to_vec(), sql.now(), written.clone());
        let work: Work = Box::new(move |tx| {
            Box::pin(async move {
                for letter in &batch {
                    let is_new = letter.add(tx, &record, now).await?;
                    count.fetch_add(u64::from(is_new), Ordering::Relaxed);
                }
                Ok(())
            })
        });
        sql.work(work).await?;
    }
    Ok(written.load(Ordering::Relaxed))
}

/// One row for the outbox.
#[derive(Clone, Debug)]
struct DeadLetter {
    name: String,
    payload: Vec<u8>,
    why: String,
    nonce: Nonce,
}

impl DeadLetter {
    fn new(record: &RecordId, source: &str, difference: &LedgerDifference) -> Option<DeadLetter> {
        let LedgerDifference { kind, key, theirs, repeat, raw, .. } = difference;
        let digest = |text: &str| downstream_key(record, BIRTH, text);
        let raw = raw.as_deref().unwrap_or_default();
        let (name, why) = match kind {
            // Without a key, only the line itself tells one charge from another.
            DifferenceKind::TheirsOnly if key.is_empty() => (
                format!("line {}", digest(raw)),
                format!("`{source}` has one that we don't have, without a key"),
            ),
            DifferenceKind::TheirsOnly => {
                (format!("only {}", digest(key)), format!("`{source}` has one that we don't have: `{key}`"))
            }
            DifferenceKind::TheirsTwice => {
                let nth = repeat.map_or(2, |repeat| repeat.nth);
                (format!("twice {nth} {}", digest(key)), format!("`{source}` has {nth} for one key: `{key}`"))
            }
            DifferenceKind::Differs | DifferenceKind::OursOnly | DifferenceKind::OursTwice => return None,
        };
        // The line is JSON if the caller made it so, and text otherwise.
        let line = serde_json::from_str(raw).unwrap_or_else(|_| serde_json::Value::from(raw));
        let number = theirs.as_ref().map(|line| line.number);
        let payload = serde_json::json!({
            "source": source, "found": kind.name(), "key": key, "line_number": number, "line": line,
        });
        Some(DeadLetter { name, payload: payload.to_string().into_bytes(), why, nonce: nonce() })
    }

    /// Inserts the row and returns whether it is new.
    async fn add(
        &self,
        tx: &mut dyn SqlTx,
        record: &RecordId,
        now: Option<Timestamp>,
    ) -> Result<bool, SqlError> {
        let rules = EffectRules::default().with(|rules| rules.tries_max = 0);
        let (json, key) = (rules.to_json(), downstream_key(record, BIRTH, &self.name));
        let why = stored_text(&self.why, ERROR_BYTES_MAX);
        let tenant = Tenant::only();
        let (id, now) = (Param::Bytes(record.as_bytes()), Param::maybe_i64(now.map(Timestamp::as_micros)));
        let (birth, name) = (Param::I64(BIRTH.0.cast_signed()), Param::Text(&self.name));
        let (nonce, kind) = (Param::I64(self.nonce.0.cast_signed()), Param::Text(DEAD_LETTER_KIND));
        let state = Param::I64(i64::from(EffectState::LETTER.code()));
        let lease = Param::I64(i64::try_from(rules.lease().as_micros()).unwrap_or(i64::MAX));
        let (key, rules, tenant) = (Param::Text(&key), Param::Text(&json), Param::Text(tenant.as_str()));
        let (payload, why) = (Param::Bytes(&self.payload), Param::Text(&why));
        match tx.dialect() {
            Dialect::Postgres => {
                let params =
                    [id, now, birth, name, nonce, kind, state, lease, key, rules, tenant, payload, why];
                Ok(!tx.query(&ADD_ON_POSTGRES, &params).await?.is_empty())
            }
            Dialect::Sqlite => {
                let added = tx.query(&ADD_ON_SQLITE, &[id, birth, name, key, rules, payload]).await?;
                let Some(mut row) = added.into_iter().next() else { return Ok(false) };
                let params = [Param::I64(row.i64()?), now, nonce, kind, state, lease, tenant, why];
                tx.execute(&STATE_ADD_ON_SQLITE, &params).await?;
                Ok(true)
            }
            Dialect::Mysql => {
                tx.execute(&ADD_ON_MYSQL, &[id, birth, name, key, rules, payload]).await?;
                let drawn = tx.query(&LAST_NUMBER, &[]).await?;
                let seq = drawn.into_iter().next().ok_or_else(|| SqlError::mismatch("a number"))?.i64()?;
                if seq == 0 {
                    return Ok(false);
                }
                let params = [Param::I64(seq), now, nonce, kind, state, lease, tenant, why];
                tx.execute(&STATE_ADD_ON_MYSQL, &params).await?;
                Ok(true)
            }
        }
    }
}

/// Returns the record that the dead letters of one source belong to. No request can have this id, because no HTTP method
/// has this name.
fn record_id(source: &str) -> Option<RecordId> {
    let identity = Identity {
        tenant: Tenant::only(),
        operation: Operation { method: "(ledger)".into(), path: "/".into() },
        key: Key::stored(source).ok()?,
    };
    Some(RecordId::of(&identity, ScopeRule::Operation))
}

fn nonce() -> Nonce {
    let bits = getrandom::u64();
    // If the system has no random bytes now, a retry will not help.
    Nonce(bits.expect("the system gives random bytes"))
}

/// The dead letters of a source have one generation, because they never expire.
const BIRTH: Nonce = Nonce(0);

/// Rows in one transaction: it takes a few milliseconds, so no worker waits long for it.
const BATCH_MAX: usize = 100;

static ADD_ON_POSTGRES: Statement =
    Statement { text: include_str!("sql/postgres/dead_letter_add.sql"), columns: &[Type::I64] };

static ADD_ON_SQLITE: Statement =
    Statement { text: include_str!("sql/sqlite/dead_letter_add.sql"), columns: &[Type::I64] };

static STATE_ADD_ON_SQLITE: Statement =
    Statement { text: include_str!("sql/sqlite/dead_letter_state_add.sql"), columns: &[] };

static ADD_ON_MYSQL: Statement =
    Statement { text: include_str!("sql/mysql/dead_letter_add.sql"), columns: &[] };

static LAST_NUMBER: Statement =
    Statement { text: include_str!("sql/mysql/last_number.sql"), columns: &[Type::I64] };

static STATE_ADD_ON_MYSQL: Statement =
    Statement { text: include_str!("sql/mysql/dead_letter_state_add.sql"), columns: &[] };
