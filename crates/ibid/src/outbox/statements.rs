//! The outbox's SQL statements, in the dialect of the transaction that runs them.
//!
//! Like a store, they compare versions and timestamps and do not interpret states. They must not depend on a driver.

use ibid_core::effect::{EffectChange, EffectClaim, EffectFilter, EffectRules, StoredEffect};
use ibid_core::evidence::{EffectRef, EventName, USED_KEPT_FOR};
use ibid_core::machine::EffectState;
use ibid_core::record::Version;
use ibid_core::scope::RecordId;
use ibid_core::sql::Type::{Bool, Bytes as Blob, I64, Text};
use ibid_core::sql::{Param, SqlError, SqlRow, SqlTx, Type};
use ibid_core::time::Timestamp;

use crate::transaction::statements::{
    DialectSql, WriteOptions, bits, both, instant, interval, mark, micros, nonce, number, of,
};

/// Claims due effects. Returns the rows as they are after the claim, in outbox order.
pub(crate) async fn take(
    tx: &mut dyn SqlTx,
    claim: &EffectClaim,
    terms: WriteOptions,
) -> Result<Vec<StoredEffect>, SqlError> {
    let statement = of(tx, &TAKE);
    let (from, to) = claim.reason.states();
    // `Param` has no array type, so the kinds are passed as JSON.
    let kinds = serde_json::to_string(&claim.kinds).expect("strings are JSON");
    let params = [
        instant(terms.now),
        code(from),
        code(to),
        bits(claim.nonce),
        Param::I64(i64::from(claim.reason.is_try())),
        Param::Text(&kinds),
        Param::I64(i64::from(claim.limit)),
        terms.lasts(),
    ];
    let mut effects = read(tx.query(statement, &params).await?)?;
    effects.sort_by_key(|effect| effect.seq);
    Ok(effects)
}

/// Writes a change. Returns the time of the write, or `None` if the effect has another version by now.
pub(crate) async fn commit(
    tx: &mut dyn SqlTx,
    change: &EffectChange,
    terms: WriteOptions,
) -> Result<Option<Timestamp>, SqlError> {
    let statement = of(tx, &COMMIT);
    let version = version_after(change);
    let params = [
        instant(terms.now),
        Param::I64(change.seq),
        Param::I64(i64::from(change.expect.count)),
        bits(change.expect.nonce),
        Param::I64(i64::from(version.count)),
        bits(version.nonce),
        code(change.state),
        Param::Bool(!change.state.is_final()),
        Param::I64(i64::from(change.tries)),
        interval(change.due_in),
        mark(change.called),
        Param::Bool(change.state.is_final()),
        Param::maybe_bytes(change.result.as_deref()),
        Param::maybe_text(change.provider_id.as_deref()),
        Param::maybe_text(change.last_error.as_deref()),
        mark(change.ended),
        terms.lasts(),
    ];
    let written = tx.query(statement, &params).await?;
    written.into_iter().next().map(|mut row| row.i64().map(Timestamp::from_micros)).transpose()
}

/// Loads one effect, as the transaction sees it.
pub(crate) async fn load(
    tx: &mut dyn SqlTx,
    seq: i64,
    now: Option<Timestamp>,
) -> Result<Option<StoredEffect>, SqlError> {
    let statement = of(tx, &LOAD);
    let effects = read(tx.query(statement, &[instant(now), Param::I64(seq)]).await?)?;
    Ok(effects.into_iter().next())
}

/// Finds effects by a name that the provider knows: one effect, unless the name is ambiguous.
pub(crate) async fn find(
    tx: &mut dyn SqlTx,
    at: &EffectRef,
    now: Option<Timestamp>,
) -> Result<Vec<StoredEffect>, SqlError> {
    let rows = match at {
        EffectRef::DownstreamKey(key) => {
            tx.query(of(tx, &FIND_BY_KEY), &[instant(now), Param::Text(key)]).await?
        }
        EffectRef::ProviderId { kind, id } => {
            let params = [instant(now), Param::Text(id), Param::Text(kind)];
            tx.query(of(tx, &FIND_BY_PROVIDER), &params).await?
        }
    };
    read(rows)
}

/// Marks evidence as used by the change that applies it.
pub(crate) async fn use_evidence(
    tx: &mut dyn SqlTx,
    name: &EventName,
    now: Option<Timestamp>,
) -> Result<(), SqlError> {
    let statement = of(tx, &EVIDENCE_USE);
    let kept_for = Param::I64(micros(USED_KEPT_FOR));
    let params = [instant(now), Param::Text(&name.source), Param::Text(&name.event), kept_for];
    tx.execute(statement, &params).await.map(drop)
}

/// Lists the effects that match `filter`, in outbox order.
pub(crate) async fn list(
    tx: &mut dyn SqlTx,
    filter: &EffectFilter,
    now: Option<Timestamp>,
) -> Result<Vec<StoredEffect>, SqlError> {
    let page = [instant(now), Param::I64(filter.after), Param::I64(i64::from(filter.limit))];
    let [at, after, limit] = page;
    let state = filter.state.map_or(Param::Null(I64), code);
    let rows = match (&filter.record, filter.state) {
        (record, _) if filter.dead_letter => {
            let record = Param::maybe_bytes(record.as_ref().map(|id| &id.as_bytes()[..]));
            let (always, unless_due) = EffectState::DEAD_LETTERS;
            let params = [at, after, limit, record, code(always), code(unless_due)];
            tx.query(of(tx, &LIST_DEAD), &params).await?
        }
        (Some(record), _) => {
            let params = [at, after, limit, Param::Bytes(record.as_bytes()), state];
            tx.query(of(tx, &LIST_OF_RECORD), &params).await?
        }
        (None, Some(_)) => tx.query(of(tx, &LIST_OF_STATE), &[at, after, limit, state]).await?,
        (None, None) => tx.query(of(tx, &LIST), &page).await?,
    };
    read(rows)
}

/// Returns the version that the effect has after this change.
pub(crate) fn version_after(change: &EffectChange) -> Version {
    Version { count: change.expect.count.wrapping_add(1), nonce: change.nonce }
}

fn read(rows: Vec<SqlRow>) -> Result<Vec<StoredEffect>, SqlError> {
    rows.into_iter().map(effect).collect()
}

/// Reads an effect from a row. A value that this program cannot read is an error, never a default.
fn effect(mut row: SqlRow) -> Result<StoredEffect, SqlError> {
    let row = &mut row;
    let seq = row.i64()?;
    let id: [u8; RecordId::LEN] =
        row.bytes()?.as_ref().try_into().map_err(|_| SqlError::wrong("a record's id"))?;
    let (birth, tenant, name, kind) = (nonce(row)?, row.text()?, row.text()?, row.text()?);
    let version = Version { count: number(row)?, nonce: nonce(row)? };
    let state = EffectState::from_code(number(row)?).ok_or_else(|| SqlError::wrong("a known state"))?;
    let tries = number(row)?;
    let mut at = || Ok::<_, SqlError>(row.maybe_i64()?.map(Timestamp::from_micros));
    let due_at = at()?;
    let created_at = at()?.ok_or_else(|| SqlError::wrong("an instant"))?;
    let (called_at, ended_at, done_at) = (at()?, at()?, at()?);
    let (aggregate, downstream_key) = (row.maybe_text()?, row.text()?);
    let rules = EffectRules::from_bytes(&row.bytes()?).ok_or_else(|| SqlError::wrong("readable rules"))?;
    let (owes, trace, payload) = (row.bool()?, row.maybe_text()?, row.bytes()?);
    let (result, provider_id, last_error) = (row.maybe_bytes()?, row.maybe_text()?, row.maybe_text()?);
    Ok(StoredEffect {
        seq,
        record: RecordId::from_bytes(id),
        birth,
        tenant,
        name,
        kind,
        version,
        state,
        tries,
        due_at,
        created_at,
        called_at,
        ended_at,
        done_at,
        aggregate,
        downstream_key,
        rules,
        owes,
        trace,
        payload,
        result,
        provider_id,
        last_error,
        now: Timestamp::from_micros(row.i64()?),
    })
}

fn code(state: EffectState) -> Param<'static> {
    Param::I64(i64::from(state.code()))
}

/// Column types, in the order in which `effect` reads them.
const EFFECT: &[Type] = &[
    I64, Blob, I64, Text, Text, Text, I64, I64, I64, I64, I64, I64, I64, I64, I64, Text, Text, Blob, Bool,
    Text, Blob, Blob, Text, Text, I64,
];

static TAKE: DialectSql = both!("take.sql", EFFECT);
static COMMIT: DialectSql = both!("commit.sql", &[I64]);
static LOAD: DialectSql = both!("load.sql", EFFECT);
static FIND_BY_KEY: DialectSql = both!("find_by_key.sql", EFFECT);
static FIND_BY_PROVIDER: DialectSql = both!("find_by_provider.sql", EFFECT);
static EVIDENCE_USE: DialectSql = both!("evidence_use.sql", &[]);
static LIST: DialectSql = both!("list.sql", EFFECT);
static LIST_DEAD: DialectSql = both!("list_dead.sql", EFFECT);
static LIST_OF_RECORD: DialectSql = both!("list_of_record.sql", EFFECT);
static LIST_OF_STATE: DialectSql = both!("list_of_state.sql", EFFECT);
