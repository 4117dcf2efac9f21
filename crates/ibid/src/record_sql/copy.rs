//! Rows of a copy, out of an SQL store and into one: a page is one statement, and so is a batch of rows, as JSON.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{BodyKind, LoadedBody};
use ibid_core::evidence::{self, EventName, Evidence, StoredEvidence};
use ibid_core::fingerprint::Fingerprint;
use ibid_core::hex;
use ibid_core::record::{Nonce, Record};
use ibid_core::response::SavedResponse;
use ibid_core::row::{INLINE_BODY_MAX, TOMBSTONE_FLAG, bits};
use ibid_core::scope::RecordId;
use ibid_core::sql::Type::{Bool, Bytes as Blob, I64, Text};
use ibid_core::sql::{Param, SqlError, SqlFault, SqlRow, SqlTx};
use ibid_core::store::copy::{
    CopiedEvidence, CopiedHistory, CopiedLine, CopiedRecord, CopyPart, CopyRow, SettingFence,
};
use ibid_core::store::{Cursor, Page, SqlStore, StoreError};
use ibid_core::time::Timestamp;
use serde_json::{Value, json};

use super::{
    BODY_PUT, DialectSql, READ_COLUMNS, body_key, column_limits, in_all_dialects, in_dialect, instant,
    read_row, run,
};

/// Returns one page of rows, in the order of ids or of arrival.
pub(crate) async fn export(
    store: &dyn SqlStore,
    part: CopyPart,
    after: Option<Cursor>,
    limit: u32,
) -> Result<Page<CopyRow>, StoreError> {
    let now = store.now();
    run(store, move |tx| {
        Box::pin(async move {
            match part {
                CopyPart::Records => records_page(tx, after, limit, now).await,
                CopyPart::History => history_page(tx, after, limit).await,
                CopyPart::Evidence => evidence_page(tx, after, limit).await,
            }
        })
    })
    .await
}

/// Stores rows, each in place of the one with its key, in one transaction, if the fence holds.
pub(crate) async fn import(
    store: &dyn SqlStore,
    fence: SettingFence,
    rows: Vec<CopyRow>,
) -> Result<(), StoreError> {
    let policies = number_policies(store, &rows).await?;
    run(store, move |tx| {
        Box::pin(async move {
            check_fence(tx, &fence).await?;
            put_records(tx, &rows, &policies).await?;
            put(tx, &HISTORY_PUT, lines_json(&rows)).await?;
            put(tx, &EVIDENCE_PUT, evidence_json(&rows)).await
        })
    })
    .await
}

/// Fails if the setting has another value. Until the transaction ends, the setting cannot change.
pub(crate) async fn check_fence(tx: &mut dyn SqlTx, fence: &SettingFence) -> Result<(), SqlError> {
    let rows = tx.query(in_dialect(tx, &FENCE), &[Param::Text(fence.name)]).await?;
    let value = rows.into_iter().next().map(|mut row| row.bytes()).transpose()?;
    match value == Some(fence.value.clone()) {
        true => Ok(()),
        false => Err(SqlError::new(SqlFault::Wrong, "the mark of the copy has changed")),
    }
}

async fn records_page(
    tx: &mut dyn SqlTx,
    after: Option<Cursor>,
    limit: u32,
    now: Option<Timestamp>,
) -> Result<Page<CopyRow>, SqlError> {
    let after = id_after(after);
    let params = [Param::Bytes(&after), instant(now), Param::I64(i64::from(limit) + 1)];
    let rows = tx.query(in_dialect(tx, &RECORDS), &params).await?;
    let read = rows.into_iter().map(|row| Ok(read_row(row)?.stored)).collect::<Result<Vec<_>, SqlError>>()?;
    let page = Page::new(read, limit, |last| id_cursor(&last.record.id));
    let ids: Vec<String> = page.items.iter().map(|stored| stored.record.id.to_string()).collect();
    let mut bodies: HashMap<RecordId, Vec<LoadedBody>> = HashMap::new();
    for mut row in tx.query(in_dialect(tx, &BODIES), &[Param::Text(&json!(ids).to_string())]).await? {
        let (id, kind, data) = (id(&mut row)?, super::number(&mut row)?, row.bytes()?);
        bodies.entry(id).or_default().push(LoadedBody { kind, data });
    }
    let copied = page.items.into_iter().map(|stored| {
        let bodies = bodies.remove(&stored.record.id).unwrap_or_default();
        CopyRow::Record(Box::new(CopiedRecord { record: stored.record, response: stored.response, bodies }))
    });
    Ok(Page { items: copied.collect(), next: page.next })
}

async fn history_page(
    tx: &mut dyn SqlTx,
    after: Option<Cursor>,
    limit: u32,
) -> Result<Page<CopyRow>, SqlError> {
    let after = id_after(after);
    let params = [Param::Bytes(&after), Param::I64(i64::from(limit) + 1)];
    let mut all: Vec<CopiedHistory> = Vec::new();
    for mut row in tx.query(in_dialect(tx, &HISTORY), &params).await? {
        let (id, at) = (id(&mut row)?, Timestamp::from_micros(row.i64()?));
        let line = CopiedLine { at, what: row.text()?, detail: row.text()? };
        match all.last_mut().filter(|last| last.id == id) {
            Some(last) => last.lines.push(line),
            None => all.push(CopiedHistory { id, lines: vec![line] }),
        }
    }
    let page = Page::new(all, limit, |last| id_cursor(&last.id));
    Ok(Page { items: page.items.into_iter().map(CopyRow::History).collect(), next: page.next })
}

async fn evidence_page(
    tx: &mut dyn SqlTx,
    after: Option<Cursor>,
    limit: u32,
) -> Result<Page<CopyRow>, SqlError> {
    let after = after.as_ref().and_then(Cursor::as_i64).unwrap_or(0);
    let params = [Param::I64(after), Param::I64(i64::from(limit) + 1)];
    let rows = tx.query(in_dialect(tx, &EVIDENCE), &params).await?;
    let read = |mut row: SqlRow| Ok((row.i64()?, evidence_row(row)?));
    let rows = rows.into_iter().map(read).collect::<Result<Vec<_>, SqlError>>()?;
    let page = Page::new(rows, limit, |(seq, _)| Cursor::of_i64(*seq));
    let items = page.items.into_iter().map(|(_, row)| CopyRow::Evidence(Box::new(row)));
    Ok(Page { items: items.collect(), next: page.next })
}

fn evidence_row(mut row: SqlRow) -> Result<CopiedEvidence, SqlError> {
    let name = EventName { source: row.text()?, event: row.text()? };
    let id = id(&mut row)?;
    let owner = row.maybe_i64()?.map(|bits| Nonce(bits.cast_unsigned()));
    let (as_of, open, bytes) = (Timestamp::from_micros(row.i64()?), row.bool()?, row.bytes()?);
    let outcome = evidence::decode_evidence(id, &bytes);
    let (about, what) = outcome.ok_or_else(|| SqlError::mismatch("readable evidence"))?;
    let evidence = Evidence { name, about, owner, what, age: Duration::ZERO };
    let purge_at = Timestamp::from_micros(row.i64()?);
    Ok(CopiedEvidence { stored: StoredEvidence { evidence, as_of, open }, purge_at })
}

/// Stores the policies of the rows, each once, and returns their numbers by their bytes.
async fn number_policies(
    store: &dyn SqlStore,
    rows: &[CopyRow],
) -> Result<HashMap<Vec<u8>, i64>, StoreError> {
    let mut numbers = HashMap::new();
    for row in rows {
        let CopyRow::Record(row) = row else { continue };
        let bytes = row.record.policy.to_bytes();
        if let Entry::Vacant(entry) = numbers.entry(bytes) {
            entry.insert(store.policy(row.record.policy.clone()).await?);
        }
    }
    Ok(numbers)
}

async fn put_records(
    tx: &mut dyn SqlTx,
    rows: &[CopyRow],
    policies: &HashMap<Vec<u8>, i64>,
) -> Result<(), SqlError> {
    let ids: Vec<String> = records(rows).map(|row| row.record.id.to_string()).collect();
    if ids.is_empty() {
        return Ok(());
    }
    tx.execute(in_dialect(tx, &RECORDS_CLEAR), &[Param::Text(&json!(ids).to_string())]).await?;
    put(tx, &RECORDS_PUT, records_json(rows, policies)).await?;
    for row in records(rows) {
        for (kind, data) in bodies_apart(row) {
            let [id, birth, born_at] = body_key(&row.record.id, row.record.birth, row.record.created_at);
            let params = [id, birth, born_at, Param::I64(i64::from(kind)), Param::Bytes(data)];
            tx.execute(in_dialect(tx, &BODY_PUT), &params).await?;
        }
    }
    Ok(())
}

fn records(rows: &[CopyRow]) -> impl Iterator<Item = &CopiedRecord> {
    rows.iter().filter_map(|row| if let CopyRow::Record(row) = row { Some(&**row) } else { None })
}

/// Returns the bodies that are not in the row, by the code of their kind: a large response, and all others.
fn bodies_apart(row: &CopiedRecord) -> impl Iterator<Item = (u32, &Bytes)> {
    let response = match &row.response {
        Some(SavedResponse::Plain(response)) => Some(&response.body),
        Some(SavedResponse::Sealed { data, .. }) => Some(data),
        None => None,
    };
    let response =
        response.filter(|body| body.len() > INLINE_BODY_MAX).map(|body| (BodyKind::RESPONSE, body));
    response.into_iter().chain(row.bodies.iter().map(|body| (body.kind, &body.data)))
}

/// Returns the columns of all records, with the numbers of their policies.
fn records_json(rows: &[CopyRow], policies: &HashMap<Vec<u8>, i64>) -> Vec<Value> {
    let number = |record: &Record| policies.get(&record.policy.to_bytes()).copied().unwrap_or_default();
    records(rows).map(|row| record_json(row, number(&row.record))).collect()
}

/// Returns the columns of a record. Those with their first value are null, as in every row.
fn record_json(row: &CopiedRecord, policy: i64) -> Value {
    let record = &*row.record;
    let identity = &record.identity;
    let is_tombstone = identity.is_forgotten();
    let at = |at: Option<Timestamp>| at.map(Timestamp::as_micros);
    // Nothing can be reaped before. A record that stays until it is settled is looked at when it would otherwise expire.
    let strip_at = record.expires_at.filter(|_| !is_tombstone);
    let reap_at = record.purge_at.map(|purge_at| strip_at.map_or(purge_at, |at| at.min(purge_at)));
    let reap_at = reap_at.unwrap_or_else(|| record.created_at.after(record.policy.retention));
    let (lines, body, sealed_by) = match &row.response {
        None => (None, None, None),
        Some(SavedResponse::Plain(response)) => (Some(response.lines()), Some(&response.body), None),
        Some(SavedResponse::Sealed { key_id, data }) => (None, Some(data), Some(key_id)),
    };
    let body = body.filter(|body| body.len() <= INLINE_BODY_MAX);
    json!({
        "id": record.id.to_string(),
        "count": record.version.count,
        "nonce": bits(record.version.nonce),
        "birth": bits(record.birth),
        "owner": Some(record.owner).filter(|owner| *owner != record.birth).map(bits),
        "attempt": Some(record.attempt).filter(|attempt| *attempt != 1),
        "state": record.state.code(),
        "flags": record.flags.bits() | if is_tombstone { TOMBSTONE_FLAG } else { 0 },
        "policy": policy,
        "point": Some(record.point).filter(|point| *point != 0),
        "created_at": record.created_at.as_micros(),
        "ran_at": at(record.ran_at),
        "completed_at": at(record.completed_at),
        "due_at": at(record.due_at),
        "watched": super::is_watched(record.state, record.due_at.is_some()),
        "unfinished": super::is_unfinished(record.state),
        "expires_at": at(record.expires_at),
        "purge_at": at(record.purge_at),
        "reap_at": reap_at.as_micros(),
        "fingerprint": record.fingerprint.as_ref().map(Fingerprint::to_bytes).map(|bytes| hex::encode(&bytes)),
        "tenant": identity.tenant.as_str(),
        "method": identity.operation.method,
        "path": identity.operation.path,
        "key": identity.key.as_str(),
        "note": record.note.to_json(),
        "status": record.note.status,
        "lines": lines.map(|lines| hex::encode(&lines)),
        "body": body.map(|body| hex::encode(body)),
        "sealed_by": sealed_by,
    })
}

/// Returns the columns of the lines of all histories.
fn lines_json(rows: &[CopyRow]) -> Vec<Value> {
    let mut values = Vec::new();
    for row in rows {
        let CopyRow::History(CopiedHistory { id, lines }) = row else { continue };
        let id = id.to_string();
        for (line, CopiedLine { at, what, detail }) in lines.iter().enumerate() {
            let (n, at) = (values.len(), at.as_micros());
            values.push(json!({ "n": n, "line": line, "id": id, "at": at, "what": what, "detail": detail }));
        }
    }
    values
}

/// Returns the columns of all evidence, except of what proves nothing: a store has none of that.
fn evidence_json(rows: &[CopyRow]) -> Vec<Value> {
    let mut values = Vec::new();
    for row in rows {
        let CopyRow::Evidence(row) = row else { continue };
        let CopiedEvidence { stored: StoredEvidence { evidence, as_of, open }, purge_at } = &**row;
        let Some(bytes) = evidence::encode_evidence(evidence) else { continue };
        values.push(json!({
            "n": values.len(),
            "source": evidence.name.source,
            "event": evidence.name.event,
            "record": evidence.about.id().to_string(),
            "owner": evidence.owner.map(bits),
            "as_of": as_of.as_micros(),
            "purge_at": purge_at.as_micros(),
            "open": u8::from(*open),
            "found": hex::encode(&bytes),
        }));
    }
    values
}

/// Runs a statement that takes rows as a JSON array, with as many rows at a time as it can take.
pub(crate) async fn put(
    tx: &mut dyn SqlTx,
    statement: &'static DialectSql,
    values: impl IntoIterator<Item = Value>,
) -> Result<(), SqlError> {
    let (statement, bytes_max) = (in_dialect(tx, statement), tx.param_bytes_max().min(PUT_BYTES_MAX));
    let mut array = String::new();
    for value in values {
        let row = row_text(value);
        if !array.is_empty() && array.len() + row.len() + BRACKETS > bytes_max {
            array.push(']');
            tx.execute(statement, &[Param::Text(&std::mem::take(&mut array))]).await?;
        }
        array.push(if array.is_empty() { '[' } else { ',' });
        array.push_str(&row);
    }
    match array.is_empty() {
        true => Ok(()),
        false => {
            array.push(']');
            tx.execute(statement, &[Param::Text(&array)]).await
        }
    }
}

/// Returns a row of [`put`]. A null is left out: databases differ in what they make of one within JSON.
fn row_text(mut value: Value) -> String {
    if let Some(row) = value.as_object_mut() {
        row.retain(|_, value| !value.is_null());
    }
    value.to_string()
}

/// Fails permanently if the store can't hold one of these rows.
pub(crate) async fn check(store: &dyn SqlStore, rows: Vec<CopyRow>) -> Result<(), StoreError> {
    let largest_body = records(&rows).flat_map(bodies_apart).map(|(_, data)| data.len()).max().unwrap_or(0);
    let of_records = records(&rows).map(|row| record_json(row, i64::MIN));
    let values = of_records.chain(lines_json(&rows)).chain(evidence_json(&rows)).collect();
    check_values(store, values, largest_body).await
}

/// Fails permanently if a column of the store can't hold a value of these rows of [`put`], or no statement a row or a body of
/// `largest_body` bytes.
pub(crate) async fn check_values(
    store: &dyn SqlStore,
    values: Vec<Value>,
    largest_body: usize,
) -> Result<(), StoreError> {
    let refuse = |why: String| StoreError::lasting("sql", "check rows", why).unwritten();
    let dialect = store.dialect();
    if let Some(why) = values.iter().find_map(|value| column_limits::find_misfit(dialect, value)) {
        return Err(refuse(why));
    }
    let bytes = values.into_iter().map(|value| row_text(value).len() + BRACKETS);
    let bytes = bytes.max().unwrap_or(0).max(largest_body);
    let bytes_max = run(store, |tx| Box::pin(async move { Ok(tx.param_bytes_max()) })).await?;
    match bytes <= bytes_max {
        true => Ok(()),
        false => Err(refuse(format!(
            "a row needs {bytes} bytes in one statement, and the server takes {bytes_max}"
        ))),
    }
}

fn id(row: &mut SqlRow) -> Result<RecordId, SqlError> {
    let bytes = row.bytes()?;
    let bytes = bytes[..].try_into().map_err(|_| SqlError::mismatch("an id"))?;
    Ok(RecordId::from_bytes(bytes))
}

fn id_cursor(id: &RecordId) -> Cursor {
    Cursor(Bytes::copy_from_slice(id.as_bytes()))
}

/// Returns the id behind which a page begins. No id consists of zeros: it is a digest.
fn id_after(after: Option<Cursor>) -> Bytes {
    after.map_or_else(|| Bytes::from_static(&[0; RecordId::LEN]), |cursor| cursor.0)
}

static FENCE: DialectSql = in_all_dialects!("", "copy_fence.sql", &[Blob]);
static RECORDS: DialectSql = in_all_dialects!("", "copy_records.sql", READ_COLUMNS);
static BODIES: DialectSql = in_all_dialects!("", "copy_bodies.sql", &[Blob, I64, Blob]);
static HISTORY: DialectSql = in_all_dialects!("", "copy_history.sql", &[Blob, I64, Text, Text]);
static EVIDENCE: DialectSql =
    in_all_dialects!("", "copy_evidence.sql", &[I64, Text, Text, Blob, I64, I64, Bool, Blob, I64]);
static RECORDS_CLEAR: DialectSql = in_all_dialects!("", "copy_records_clear.sql", &[]);
static RECORDS_PUT: DialectSql = in_all_dialects!("", "copy_records_put.sql", &[]);
static HISTORY_PUT: DialectSql = in_all_dialects!("", "copy_history_put.sql", &[]);
static EVIDENCE_PUT: DialectSql = in_all_dialects!("", "copy_evidence_put.sql", &[]);

/// Most bytes of rows in one statement. Each batch has a few of them, and a server has room for one.
const PUT_BYTES_MAX: usize = 8 << 20;

/// Bytes of an array besides its rows.
const BRACKETS: usize = 2;
