//! Dead letters for what a provider has and we don't: Effects that nobody ever asked for, so nobody carries them out.
//!
//! Each is written once for its source and key, and stays until a person discards it with a reason. It can't be retried:
//! there is nothing to be made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ibid_core::effect::{Rules, downstream_key};
use ibid_core::key::Key;
use ibid_core::machine::EffectState;
use ibid_core::record::Nonce;
use ibid_core::scope::{Identity, Operation, RecordId, ScopeRule, Tenant};
use ibid_core::sql::{Param, SqlError, SqlTx, Type};
use ibid_core::store::{Store, StoreError, Work};
use ibid_core::time::Timestamp;

use super::compare::{Finding, Kind};
use crate::random::nonce;
use crate::transaction::statements::{Both, bits, both, instant, micros, of};

/// The kind of Effect that these letters are. No handler may be registered for it.
pub const LETTER_KIND: &str = "ibid.ledger";

/// Why letters were not written.
#[derive(Debug, thiserror::Error)]
pub enum LetterError {
    /// The store has no outbox.
    #[error("the store has no outbox: it is no SQL store")]
    NoSql,
    /// The source's name can't be one.
    #[error("`{0}` can't be the name of a source: 1 to 255 visible ASCII characters")]
    Source(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Writes a dead letter for each finding that we know nothing of; how many are new. `source` names the provider.
pub async fn write_letters(
    store: &dyn Store,
    source: &str,
    findings: &[Finding],
) -> Result<u64, LetterError> {
    let sql = store.sql().ok_or(LetterError::NoSql)?;
    let record = record_of(source).ok_or_else(|| LetterError::Source(source.to_owned()))?;
    let letters: Vec<Letter> =
        findings.iter().filter_map(|found| Letter::of(&record, source, found)).collect();
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

/// One row of the outbox.
#[derive(Clone, Debug)]
struct Letter {
    name: String,
    payload: Vec<u8>,
    why: String,
    nonce: Nonce,
}

impl Letter {
    fn of(record: &RecordId, source: &str, finding: &Finding) -> Option<Letter> {
        let Finding { kind, key, theirs, again, whole, .. } = finding;
        let digest = |text: &str| downstream_key(record, BIRTH, text);
        let whole = whole.as_deref().unwrap_or_default();
        let (name, why) = match kind {
            // Without a key only the line itself tells one from another.
            Kind::TheirsOnly if key.is_empty() => (
                format!("line {}", digest(whole)),
                format!("`{source}` has one that we don't have, without a key"),
            ),
            Kind::TheirsOnly => {
                (format!("only {}", digest(key)), format!("`{source}` has one that we don't have: `{key}`"))
            }
            Kind::TheirsTwice => {
                let nth = again.map_or(2, |again| again.nth);
                (format!("twice {nth} {}", digest(key)), format!("`{source}` has {nth} for one key: `{key}`"))
            }
            Kind::Differs | Kind::OursOnly | Kind::OursTwice => return None,
        };
        // The line is JSON if whoever compared made it so, and a text otherwise.
        let line = serde_json::from_str(whole).unwrap_or_else(|_| serde_json::Value::from(whole));
        let number = theirs.as_ref().map(|side| side.number);
        let payload = serde_json::json!({
            "source": source, "found": kind.name(), "key": key, "line_number": number, "line": line,
        });
        Some(Letter { name, payload: payload.to_string().into_bytes(), why, nonce: nonce() })
    }

    /// Whether there was none yet.
    async fn add(
        &self,
        tx: &mut dyn SqlTx,
        record: &RecordId,
        now: Option<Timestamp>,
    ) -> Result<bool, SqlError> {
        let rules = Rules { tries_max: 0, ..Rules::default() };
        let (bytes, key) = (rules.to_bytes(), downstream_key(record, BIRTH, &self.name));
        let tenant = Tenant::only();
        let params = [
            Param::Bytes(record.as_bytes()),
            instant(now),
            bits(BIRTH),
            Param::Text(&self.name),
            bits(self.nonce),
            Param::Text(LETTER_KIND),
            Param::I64(i64::from(EffectState::LETTER.code())),
            Param::I64(micros(rules.lease())),
            Param::Text(&key),
            Param::Bytes(&bytes),
            Param::Text(tenant.as_str()),
            Param::Bytes(&self.payload),
            Param::Text(&self.why),
        ];
        Ok(!tx.query(of(tx, &LETTER_ADD), &params).await?.is_empty())
    }
}

/// Where the letters of one source belong: an id that no request can have, for no method is called so.
fn record_of(source: &str) -> Option<RecordId> {
    let identity = Identity {
        tenant: Tenant::only(),
        operation: Operation { method: "(ledger)".into(), path: "/".into() },
        key: Key::stored(source).ok()?,
    };
    Some(RecordId::of(&identity, ScopeRule::Operation))
}

/// The letters of a source have one generation: it is never forgotten.
const BIRTH: Nonce = Nonce(0);

/// Letters in one transaction: a few milliseconds, so that nobody waits for the ledger.
const BATCH_MAX: usize = 100;

static LETTER_ADD: Both = both!("letter_add.sql", &[Type::I64]);
