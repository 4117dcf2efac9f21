//! The outbox's SQL statements, in the dialect of the transaction that runs them.
//!
//! Like a store, they compare versions and timestamps and do not interpret states. They must not depend on a driver.

use std::collections::HashSet;

use ibid_core::change::InstantChange;
use ibid_core::effect::{
    ERROR_BYTES_MAX, EffectChange, EffectClaim, EffectFilter, EffectRules, NAME_BYTES_MAX, NewEffect,
    PROVIDER_ID_BYTES_MAX, StoredEffect, downstream_key, stored_text,
};
use ibid_core::evidence::{EffectRef, EventName, USED_KEPT_FOR};
use ibid_core::machine::EffectState;
use ibid_core::record::{Nonce, Record, Version};
use ibid_core::row::micros;
use ibid_core::scope::RecordId;
use ibid_core::sql::Type::{Bool, Bytes as Blob, I64, Text};
use ibid_core::sql::{Dialect, Param, SqlError, SqlRow, SqlTx, Statement, Type};
use ibid_core::time::Timestamp;

use super::mysql_statements as mysql;
use crate::record_sql::{
    DialectSql, WriteOptions, in_all_dialects, in_dialect, instant, interval, mark, nonce, nonce_param,
    number,
};

/// Puts an effect of `record` into the outbox. Returns `false` if the record already has one of that name.
///
/// The caller has [checked](NewEffect::check) the effect's texts.
pub(crate) async fn enqueue(
    tx: &mut dyn SqlTx,
    record: &Record,
    effect: &NewEffect,
    nonce: Nonce,
    now: Option<Timestamp>,
) -> Result<bool, SqlError> {
    let key = downstream_key(&record.id, record.birth, &effect.name);
    let rules = effect.rules.to_json();
    let trace = effect.trace.as_deref().map(|trace| stored_text(trace, TRACE_BYTES_MAX));
    let (id, birth, name) =
        (Param::Bytes(record.id.as_bytes()), nonce_param(record.birth), Param::Text(&effect.name));
    let (nonce, kind) = (nonce_param(nonce), Param::Text(&effect.kind));
    let (delay, lease) = (Param::I64(micros(effect.delay)), Param::I64(micros(effect.rules.lease())));
    let (key, rules, owes) = (Param::Text(&key), Param::Text(&rules), Param::Bool(effect.owes));
    let aggregate = Param::maybe_text(effect.aggregate.as_deref());
    let tenant = Param::Text(record.identity.tenant.as_str());
    let (trace, payload) = (Param::maybe_text(trace.as_deref()), Param::Bytes(&effect.payload));
    let (now, state) = (instant(now), code(EffectState::ENQUEUED));
    match tx.dialect() {
        Dialect::Postgres => {
            let params = [
                id, now, birth, name, nonce, kind, state, delay, lease, key, aggregate, rules, owes, tenant,
                trace, payload,
            ];
            Ok(!tx.query(&ENQUEUE, &params).await?.is_empty())
        }
        Dialect::Sqlite | Dialect::Mysql => {
            if tx.dialect() == Dialect::Mysql && effect.aggregate.is_some() {
                tx.execute(&AGGREGATE_LOCK, &[tenant, aggregate]).await?;
            }
            let params = [id, birth, name, owes, key, rules, trace, payload];
            let Some(seq) = add_call(tx, &params).await? else { return Ok(false) };
            let seq = Param::I64(seq);
            let params = [seq, now, nonce, delay, lease, state, tenant, kind, aggregate];
            tx.execute(in_dialect(tx, &EFFECT_ADD), &params).await?;
            if effect.aggregate.is_some() {
                tx.execute(in_dialect(tx, &TURN_ADD), &[seq]).await?;
            }
            Ok(true)
        }
    }
}

/// Adds the part of an effect that never changes. Returns its number, or `None` if the record has one of that name.
async fn add_call(tx: &mut dyn SqlTx, params: &[Param<'_>]) -> Result<Option<i64>, SqlError> {
    let rows = match tx.dialect() {
        Dialect::Mysql => {
            tx.execute(&CALL_ADD_ON_MYSQL, params).await?;
            tx.query(&LAST_NUMBER, &[]).await?
        }
        Dialect::Postgres | Dialect::Sqlite => tx.query(&CALL_ADD_ON_SQLITE, params).await?,
    };
    let number = rows.into_iter().next().map(|mut row| row.i64()).transpose()?;
    Ok(number.filter(|number| *number != 0))
}

/// Handles up to [`TURNS_MAX`] turns of aggregates: unblocks the first open effect of each. A worker's look begins with it.
pub(crate) async fn give_turns(tx: &mut dyn SqlTx) -> Result<Turns, SqlError> {
    let limit = Param::I64(i64::from(TURNS_MAX));
    match tx.dialect() {
        Dialect::Postgres => {
            let rows = tx.query(&TURNS_ON_POSTGRES, &[limit]).await?;
            let Some(mut row) = rows.into_iter().next() else { return Ok(Turns::default()) };
            let (handled, unblocked) = (row.i64()?, row.i64()?);
            Ok(Turns { any: handled + unblocked > 0, more: handled >= i64::from(TURNS_MAX) })
        }
        Dialect::Sqlite => {
            let rows = tx.query(&TURNS_ON_SQLITE, &[limit]).await?;
            let turns = Turns { any: !rows.is_empty(), more: rows.len() >= TURNS_MAX as usize };
            let mut aggregates = HashSet::new();
            for mut row in rows {
                aggregates.insert((row.text()?, row.text()?));
            }
            for (tenant, aggregate) in &aggregates {
                tx.execute(&UNBLOCK, &[Param::Text(tenant), Param::Text(aggregate)]).await?;
            }
            Ok(turns)
        }
        Dialect::Mysql => mysql::give_turns(tx, limit).await,
    }
}

/// Outcome of one call of [`give_turns`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turns {
    /// `true` if something was written, so the transaction has to be committed.
    pub(crate) any: bool,
    /// `true` if there may be more turns than one look handles.
    pub(crate) more: bool,
}

/// Claims effects that this transaction has picked and locked. Returns the rows as they are after the claim, in outbox order.
///
/// A claimed row that this version cannot read is logged and left out. Its claim lapses, and a newer worker may take it.
pub(crate) async fn take(
    tx: &mut dyn SqlTx,
    claim: &EffectClaim,
    terms: WriteOptions,
) -> Result<Vec<StoredEffect>, SqlError> {
    let (_, to) = claim.reason.states();
    // `Param` has no array type, so the numbers are passed as JSON.
    let seqs = serde_json::to_string(&claim.seqs).expect("numbers are JSON");
    let (seqs, to, nonce) = (Param::Text(&seqs), code(to), nonce_param(claim.nonce));
    let is_try = Param::I64(i64::from(claim.reason.is_try()));
    let rows = match tx.dialect() {
        Dialect::Postgres => {
            tx.query(&TAKE_ON_POSTGRES, &[instant(terms.now), seqs, to, nonce, is_try, terms.lasts()]).await?
        }
        Dialect::Sqlite => {
            tx.execute(&TAKE_ON_SQLITE, &[instant(terms.now), seqs, to, nonce, is_try]).await?;
            load_rows(tx, &claim.seqs, terms.now).await?
        }
        Dialect::Mysql => {
            tx.execute(&TAKE_ON_MYSQL, &[seqs, to, nonce, is_try]).await?;
            load_rows(tx, &claim.seqs, terms.now).await?
        }
    };
    Ok(read_page(rows)?.effects)
}

/// Writes a change. Returns the time of the write, or `None` if the effect has another version by now.
///
/// The provider's id and the error are cleaned here, so that no text of a handler can keep a result from being written.
pub(crate) async fn commit(
    tx: &mut dyn SqlTx,
    change: &EffectChange,
    terms: WriteOptions,
) -> Result<Option<Timestamp>, SqlError> {
    let version = version_after(change);
    let provider_id = change.provider_id.as_deref().map(|id| stored_text(id, PROVIDER_ID_BYTES_MAX));
    let last_error = change.last_error.as_deref().map(|error| stored_text(error, ERROR_BYTES_MAX));
    let is_final = change.state.is_final();
    let result = Param::maybe_bytes(change.result.as_deref());
    let params = [
        instant(terms.now),
        Param::I64(change.seq),
        Param::I64(i64::from(change.expect.count)),
        nonce_param(change.expect.nonce),
        Param::I64(i64::from(version.count)),
        nonce_param(version.nonce),
        code(change.state),
        Param::Bool(change.state.is_dead_letter(change.due_in.is_some())),
        Param::I64(i64::from(change.tries)),
        interval(change.due_in),
        mark(change.called),
        Param::Bool(is_final),
        mark(change.ended),
        Param::maybe_text(provider_id.as_deref()),
        Param::maybe_text(last_error.as_deref()),
        result,
        terms.lasts(),
    ];
    let written = match tx.dialect() {
        Dialect::Postgres => tx.query(&COMMIT_ON_POSTGRES, &params).await?,
        Dialect::Sqlite => tx.query(&COMMIT_ON_SQLITE, &params[..15]).await?,
        Dialect::Mysql => {
            // The new version alone would not tell: it is stored, too, if an earlier try of this change was committed.
            if tx.query(&VERSION_LOCK, &params[1..4]).await?.is_empty() {
                return Ok(None);
            }
            tx.execute(&COMMIT_ON_MYSQL, &params[..15]).await?;
            let [seq, count, nonce] = [params[1], params[4], params[5]];
            tx.query(&WRITTEN, &[seq, count, nonce]).await?
        }
    };
    let Some(mut row) = written.into_iter().next() else { return Ok(None) };
    if tx.dialect() != Dialect::Postgres {
        if change.result.is_some() || change.called == InstantChange::Clear {
            tx.execute(in_dialect(tx, &RESULT_SET), &[Param::I64(change.seq), result]).await?;
        }
        if is_final {
            tx.execute(in_dialect(tx, &TURN_ADD), &[Param::I64(change.seq)]).await?;
        }
    }
    row.i64().map(|now| Some(Timestamp::from_micros(now)))
}

/// Loads one effect, as the transaction sees it.
pub(crate) async fn load(
    tx: &mut dyn SqlTx,
    seq: i64,
    now: Option<Timestamp>,
) -> Result<Option<StoredEffect>, SqlError> {
    Ok(read(load_rows(tx, &[seq], now).await?)?.pop())
}

async fn load_rows(
    tx: &mut dyn SqlTx,
    seqs: &[i64],
    now: Option<Timestamp>,
) -> Result<Vec<SqlRow>, SqlError> {
    let seqs = serde_json::to_string(seqs).expect("numbers are JSON");
    tx.query(in_dialect(tx, &LOAD), &[instant(now), Param::Text(&seqs)]).await
}

/// Finds effects by a name that the provider knows: one effect, unless the name is ambiguous.
pub(crate) async fn find(
    tx: &mut dyn SqlTx,
    at: &EffectRef,
    now: Option<Timestamp>,
) -> Result<Vec<StoredEffect>, SqlError> {
    let rows = match at {
        EffectRef::DownstreamKey(key) => {
            let key = stored_text(key, NAME_BYTES_MAX);
            tx.query(in_dialect(tx, &FIND_BY_KEY), &[instant(now), Param::Text(&key)]).await?
        }
        EffectRef::ProviderId { kind, id } => {
            // As `commit` stores it.
            let id = stored_text(id, PROVIDER_ID_BYTES_MAX);
            let kind = stored_text(kind, NAME_BYTES_MAX);
            let params = [instant(now), Param::Text(&id), Param::Text(&kind)];
            tx.query(in_dialect(tx, &FIND_BY_PROVIDER), &params).await?
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
    let statement = in_dialect(tx, &EVIDENCE_USE);
    let kept_for = Param::I64(micros(USED_KEPT_FOR));
    let params = [instant(now), Param::Text(&name.source), Param::Text(&name.event), kept_for];
    tx.execute(statement, &params).await
}

/// Lists the effects that match `filter`, in outbox order.
///
/// An effect that this version cannot read is logged and left out of the page; the cursor moves past it.
pub(crate) async fn list(
    tx: &mut dyn SqlTx,
    filter: &EffectFilter,
    now: Option<Timestamp>,
) -> Result<EffectPage, SqlError> {
    // One more than asked for tells whether there are more.
    let limit = i64::from(filter.limit).saturating_add(1);
    let params = [
        instant(now),
        Param::I64(filter.after),
        Param::I64(limit),
        Param::maybe_bytes(filter.record.as_ref().map(|id| &id.as_bytes()[..])),
        filter.state.filter(|_| !filter.dead_letter).map_or(Param::Null(I64), code),
        Param::Bool(filter.dead_letter),
    ];
    let mut rows = tx.query(in_dialect(tx, &LIST), &params).await?;
    let more = rows.len() as i64 == limit;
    rows.truncate(filter.limit as usize);
    let mut page = read_page(rows)?;
    page.next = page.next.filter(|_| more);
    Ok(page)
}

/// One page of a list of effects.
#[derive(Debug, Default)]
pub(crate) struct EffectPage {
    /// The effects that could be read.
    pub(crate) effects: Vec<StoredEffect>,
    /// Cursor of the next page, if there is one.
    pub(crate) next: Option<i64>,
    /// Number of effects that a newer version wrote and this one cannot read.
    pub(crate) unreadable: u32,
}

/// Returns the version that the effect has after this change.
pub(crate) fn version_after(change: &EffectChange) -> Version {
    Version { count: change.expect.count.wrapping_add(1), nonce: change.nonce }
}

fn read(rows: Vec<SqlRow>) -> Result<Vec<StoredEffect>, SqlError> {
    rows.into_iter().map(|row| effect(row).map_err(|(_, error)| error)).collect()
}

/// Reads a page, and leaves out effects that cannot be read: a code of a newer version breaks no more than its row.
fn read_page(rows: Vec<SqlRow>) -> Result<EffectPage, SqlError> {
    let mut page = EffectPage::default();
    for row in rows {
        match effect(row) {
            Ok(effect) => {
                page.next = Some(effect.seq);
                page.effects.push(effect);
            }
            Err((Some(seq), error)) => {
                page.next = Some(seq);
                page.unreadable += 1;
                let error = &error as &dyn std::error::Error;
                tracing::warn!(effect = seq, error, "effect can't be read by this version of ibid");
            }
            Err((None, error)) => return Err(error),
        }
    }
    Ok(page)
}

/// Reads an effect from a row. A value that this program cannot read is an error, with the effect's number, never a default.
fn effect(mut row: SqlRow) -> Result<StoredEffect, (Option<i64>, SqlError)> {
    let seq = row.i64().map_err(|error| (None, error))?;
    effect_after_seq(seq, row).map_err(|error| (Some(seq), error))
}

fn effect_after_seq(seq: i64, mut row: SqlRow) -> Result<StoredEffect, SqlError> {
    let row = &mut row;
    let id: [u8; RecordId::LEN] =
        row.bytes()?.as_ref().try_into().map_err(|_| SqlError::mismatch("a record's id"))?;
    let (birth, tenant, name, kind) = (nonce(row)?, row.text()?, row.text()?, row.text()?);
    let version = Version { count: number(row)?, nonce: nonce(row)? };
    let state = EffectState::from_code(number(row)?).ok_or_else(|| SqlError::mismatch("a known state"))?;
    let tries = number(row)?;
    let mut at = || Ok::<_, SqlError>(row.maybe_i64()?.map(Timestamp::from_micros));
    let due_at = at()?;
    let created_at = at()?.ok_or_else(|| SqlError::mismatch("an instant"))?;
    let (called_at, ended_at, done_at) = (at()?, at()?, at()?);
    let (aggregate, downstream_key) = (row.maybe_text()?, row.text()?);
    let rules = EffectRules::from_json(&row.text()?).ok_or_else(|| SqlError::mismatch("readable rules"))?;
    let (owes, is_letter) = (row.bool()?, row.bool()?);
    let (trace, payload) = (row.maybe_text()?, row.maybe_bytes()?.unwrap_or_default());
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
        is_letter,
        trace,
        payload,
        result,
        provider_id,
        last_error,
        now: Timestamp::from_micros(row.i64()?),
    })
}

pub(super) fn code(state: EffectState) -> Param<'static> {
    Param::I64(i64::from(state.code()))
}

/// The file of one dialect that ends in `e`, followed by the columns of an effect.
macro_rules! effects {
    ($dialect:literal, $file:literal) => {
        Statement {
            text: concat!(
                include_str!(concat!("sql/", $dialect, "/", $file)),
                include_str!(concat!("sql/", $dialect, "/effect.sql")),
            ),
            columns: EFFECT,
        }
    };
}

/// Like `effects!`, for the same file of each dialect.
macro_rules! all_effects {
    ($file:literal) => {
        DialectSql {
            postgres: effects!("postgres", $file),
            sqlite: effects!("sqlite", $file),
            mysql: effects!("mysql", $file),
        }
    };
}

/// The file of one dialect, as a whole statement.
macro_rules! statement {
    ($path:literal, $columns:expr) => {
        Statement { text: include_str!(concat!("sql/", $path)), columns: $columns }
    };
}

/// A step that PostgreSQL takes within another statement.
macro_rules! in_steps {
    ($file:literal) => {
        DialectSql::new(
            "",
            include_str!(concat!("sql/sqlite/", $file)),
            include_str!(concat!("sql/mysql/", $file)),
            &[],
        )
    };
}

/// Column types, in the order in which `effect` reads them.
const EFFECT: &[Type] = &[
    I64, Blob, I64, Text, Text, Text, I64, I64, I64, I64, I64, I64, I64, I64, I64, Text, Text, Text, Bool,
    Bool, Text, Blob, Blob, Text, Text, I64,
];

static ENQUEUE: Statement = statement!("postgres/enqueue.sql", &[I64]);
static CALL_ADD_ON_SQLITE: Statement = statement!("sqlite/call_add.sql", &[I64]);
static CALL_ADD_ON_MYSQL: Statement = statement!("mysql/call_add.sql", &[]);
static LAST_NUMBER: Statement = statement!("mysql/last_number.sql", &[I64]);
static AGGREGATE_LOCK: Statement = statement!("mysql/aggregate_lock.sql", &[]);
static EFFECT_ADD: DialectSql = in_steps!("effect_add.sql");
static TURN_ADD: DialectSql = in_steps!("turn_add.sql");
static TURNS_ON_POSTGRES: Statement = statement!("postgres/turns.sql", &[I64, I64]);
static TURNS_ON_SQLITE: Statement = statement!("sqlite/turns.sql", &[Text, Text]);
static UNBLOCK: Statement = statement!("sqlite/unblock.sql", &[]);
static TAKE_ON_POSTGRES: Statement = effects!("postgres", "take.sql");
static TAKE_ON_SQLITE: Statement = statement!("sqlite/take.sql", &[]);
static TAKE_ON_MYSQL: Statement = statement!("mysql/take.sql", &[]);
static COMMIT_ON_POSTGRES: Statement = statement!("postgres/commit.sql", &[I64]);
static COMMIT_ON_SQLITE: Statement = statement!("sqlite/commit.sql", &[I64]);
static COMMIT_ON_MYSQL: Statement = statement!("mysql/commit.sql", &[]);
static VERSION_LOCK: Statement = statement!("mysql/version_lock.sql", &[I64]);
static WRITTEN: Statement = statement!("mysql/written.sql", &[I64]);
static RESULT_SET: DialectSql = in_steps!("result_set.sql");
static LOAD: DialectSql = all_effects!("load.sql");
static FIND_BY_KEY: DialectSql = all_effects!("find_by_key.sql");
static FIND_BY_PROVIDER: DialectSql = all_effects!("find_by_provider.sql");
static LIST: DialectSql = all_effects!("list.sql");
static EVIDENCE_USE: DialectSql = in_all_dialects!("sql/", "evidence_use.sql", &[]);

/// Turns that one look handles. A look with this many takes some milliseconds; the worker looks again at once if there are
/// more.
pub(super) const TURNS_MAX: u32 = 256;

/// Bytes of a trace context that are stored. A `traceparent` has 55.
const TRACE_BYTES_MAX: usize = 256;
