//! Rows of a copy, out of the table and into it.
//!
//! A page is a piece of a scan. It may have no row, because a scan passes over all other items.

use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};
use ibid_core::change::BodyKind;
use ibid_core::record::Record;
use ibid_core::response::SavedResponse;
use ibid_core::row::UnreadableRowError;
use ibid_core::scope::RecordId;
use ibid_core::store::copy::{
    CopiedEvidence, CopiedHistory, CopiedLine, CopiedRecord, CopyPart, CopyRow, SettingFence,
};
use ibid_core::store::{BodyStore, BoxFuture, CopyStore, Cursor, Page, StoreError};
use ibid_core::time::Timestamp;

use crate::bodies::{body_parts, with_ttl};
use crate::browse::{position, start_key};
use crate::client::{run_all, send_one};
use crate::commit::key_of;
use crate::evidence::read_evidence;
use crate::item::{
    Item, RECORD, RESPONSE, RecordAttributes, Update, encode_body, get_bytes, get_number, get_text, key,
    number, put_response, string,
};
use crate::{DynamoStore, NAME};

impl CopyStore for DynamoStore {
    fn clock(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        Box::pin(async move { Ok(self.trusted_now("read the clock").await?.time) })
    }

    fn export(
        &self,
        part: CopyPart,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<CopyRow>, StoreError>> {
        Box::pin(async move {
            let (condition, kind) = match part {
                CopyPart::Records => ("k = :k", RECORD),
                CopyPart::History => ("begins_with(k, :k)", "h#"),
                CopyPart::Evidence => ("begins_with(k, :k)", "e#"),
            };
            let scan = self
                .request()
                .scan()
                .table_name(&self.table)
                .consistent_read(true)
                .filter_expression(condition)
                .expression_attribute_values(":k", string(kind))
                .limit(i32::try_from(limit).unwrap_or(i32::MAX))
                .set_exclusive_start_key(after.as_ref().and_then(|after| start_key(&after.0)));
            let page = send_one(EXPORT, None, || scan.clone().send()).await;
            let page = page.map_err(|error| error.into_store_error(EXPORT))?;
            let next = page.last_evaluated_key.as_ref().and_then(|last| {
                let position = position(get_bytes(last, "i")?, get_text(last, "k")?);
                Some(Cursor(position.into()))
            });
            let items = page.items.unwrap_or_default();
            let rows = items.iter().map(|item| -> BoxFuture<'_, _> { Box::pin(self.export_row(part, item)) });
            let rows = run_all(rows.collect(), AT_ONCE).await?;
            Ok(Page { items: rows.into_iter().flatten().collect(), next })
        })
    }

    fn check(&self, rows: Vec<CopyRow>) -> BoxFuture<'_, Result<(), StoreError>> {
        let fits = |row: &CopyRow| match row {
            // The number of a policy has the same size for all.
            CopyRow::Record(row) => check_item(&self.record_write(row, 0).0.values),
            CopyRow::History(row) => {
                row.lines.iter().try_for_each(|line| check_item(&self.line_item(row.id, 0, line)))
            }
            CopyRow::Evidence(row) => {
                check_item(&self.evidence_item(&row.stored, row.stored.as_of, row.purge_at)?)
            }
        };
        let checked = rows.iter().try_for_each(fits);
        Box::pin(std::future::ready(checked))
    }

    /// Tests the fence just before the batch is written, and only moves rows forward: a transaction would have to test the fence
    /// for each row, and all rows of a copy would wait for that one item.
    fn import(&self, fence: SettingFence, rows: Vec<CopyRow>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            if self.read_setting(IMPORT, fence.name).await? != Some(fence.value) {
                let why = "the mark of the copy has changed";
                return Err(StoreError::lasting(NAME, IMPORT, why).unwritten());
            }
            let imports = rows.iter().map(|row| -> BoxFuture<'_, _> {
                match row {
                    CopyRow::Record(row) => Box::pin(self.import_record(row)),
                    CopyRow::History(row) => Box::pin(self.import_history(row)),
                    CopyRow::Evidence(row) => Box::pin(self.import_evidence(row)),
                }
            });
            run_all(imports.collect(), AT_ONCE).await.map(drop)
        })
    }
}

impl DynamoStore {
    async fn export_row(&self, part: CopyPart, item: &Item) -> Result<Option<CopyRow>, StoreError> {
        let unreadable = |why| StoreError::lasting(NAME, EXPORT, UnreadableRowError(why));
        let id = get_bytes(item, "i").and_then(|id| id.try_into().ok()).map(RecordId::from_bytes);
        let id = id.ok_or_else(|| unreadable("not an id"))?;
        match part {
            CopyPart::Records => {
                let Some(stored) = self.load_record(EXPORT, id).await? else { return Ok(None) };
                let bodies = BodyStore::bodies(self, id, stored.record.birth).await?;
                let row = CopiedRecord { record: stored.record, response: stored.response, bodies };
                Ok(Some(CopyRow::Record(Box::new(row))))
            }
            CopyPart::History => {
                let items = self.query(EXPORT, id, "h#", None).await?;
                // The history of a record is one row, at its first item.
                if items.first().and_then(|first| get_text(first, "k")) != get_text(item, "k") {
                    return Ok(None);
                }
                let lines = items.iter().flat_map(copied_lines).collect();
                Ok(Some(CopyRow::History(CopiedHistory { id, lines })))
            }
            CopyPart::Evidence => {
                let stored =
                    read_evidence(item).ok_or_else(|| unreadable("evidence of an unknown version"))?;
                let purge_at = get_number(item, "ra").map(Timestamp::from_micros);
                let purge_at = purge_at.ok_or_else(|| unreadable("evidence without an end"))?;
                Ok(Some(CopyRow::Evidence(Box::new(CopiedEvidence { stored, purge_at }))))
            }
        }
    }

    /// Returns the update that stores a record unless a later version or another generation of it is stored, and the parts of
    /// its large bodies.
    fn record_write(&self, row: &CopiedRecord, policy: i64) -> (Update, Vec<Item>) {
        let record = &*row.record;
        let note = record.note.to_json();
        let mut update = Update::default();
        update.condition = "attribute_not_exists(i) OR (n = :n AND v < :v)".to_owned();
        attributes_of(record, policy, note.as_deref()).put(&mut update, self.shards);
        let instants = [("c", Some(record.created_at)), ("r", record.ran_at), ("f", record.completed_at)];
        for (name, at) in instants {
            update.put(name, at.map(|at| number(at.as_micros())));
        }
        // A version never repeats, so no other write has parts under its nonce.
        let (birth, nonce, now) = (record.birth, record.version.nonce, self.watch.now().time);
        let parts_of = |kind: u32, body: &[u8]| body_parts(record.id, nonce, kind, body, now);
        let mut parts = Vec::new();
        match &row.response {
            None => RESPONSE.into_iter().for_each(|name| update.put(name, None)),
            Some(SavedResponse::Plain(response)) => {
                put_response(&mut update, &response.lines(), &response.body, birth, nonce);
                update.put("sealed", None);
                parts.extend(parts_of(BodyKind::RESPONSE, &response.body));
            }
            Some(SavedResponse::Sealed { key_id, data }) => {
                put_response(&mut update, &[], data, birth, nonce);
                update.put("sealed", Some(string(key_id)));
                parts.extend(parts_of(BodyKind::RESPONSE, data));
            }
        }
        let bodies =
            row.bodies.iter().map(|body| (body.kind.to_string(), encode_body(&body.data, birth, nonce)));
        update.put("bo", Some(AttributeValue::M(bodies.collect())));
        parts.extend(row.bodies.iter().flat_map(|body| parts_of(body.kind, &body.data)));
        (update, with_ttl(parts, record.state, record.flags, record.purge_at))
    }

    /// Writes the parts of a record before it, and deletes those of the version that it replaces after it: the stored record
    /// always has its bodies.
    async fn import_record(&self, row: &CopiedRecord) -> Result<(), StoreError> {
        let record = &*row.record;
        let (update, parts) = self.record_write(row, self.policy_number(&record.policy).await?);
        let keys: Vec<Item> = parts.iter().filter_map(key_of).collect();
        self.put_parts(IMPORT, parts).await?;
        let request = self
            .update_item(key(record.id.as_bytes(), RECORD), update)
            .return_values(ReturnValue::UpdatedOld);
        match send_one(IMPORT, None, || request.clone().send()).await {
            Ok(reply) => self.delete_replaced_parts(IMPORT, record.id, reply.attributes).await,
            Err(failure) if failure.is_refused() => {
                // An earlier send of this batch may have stored it, and then it names these parts. If it is gone, a send that
                // is still on its way may yet store it.
                let stored = self.get(IMPORT, key(record.id.as_bytes(), RECORD)).await?;
                if stored.is_some() {
                    self.delete_refused_parts(IMPORT, record.version.nonce, stored.as_ref(), keys).await;
                }
            }
            Err(failure) => return Err(failure.into_store_error(IMPORT)),
        }
        Ok(())
    }

    /// Stores evidence. If its event is known, only its use is copied.
    async fn import_evidence(&self, row: &CopiedEvidence) -> Result<(), StoreError> {
        // Its arrival is not copied; the instant that it is about gives the same order.
        let is_new = self.put_evidence(&row.stored, row.stored.as_of, row.purge_at).await?;
        match is_new || row.stored.open {
            true => Ok(()),
            false => self.close_evidence(IMPORT, &row.stored.evidence.name, Some(row.purge_at)).await,
        }
    }

    /// Stores one item per line, under keys that a second send of the batch gives again. If the record has other lines, its
    /// history is left alone.
    async fn import_history(&self, row: &CopiedHistory) -> Result<(), StoreError> {
        let items: Vec<Item> =
            row.lines.iter().enumerate().map(|(index, line)| self.line_item(row.id, index, line)).collect();
        let stored = self.query(IMPORT, row.id, "h#", Some("i, k")).await?;
        let is_ours = |one: &Item| items.iter().any(|item| get_text(item, "k") == get_text(one, "k"));
        if !stored.iter().all(is_ours) {
            return Ok(());
        }
        self.put_parts(IMPORT, items).await
    }

    fn line_item(&self, id: RecordId, index: usize, line: &CopiedLine) -> Item {
        let mut item = key(id.as_bytes(), &format!("h#{:016x}#{index:08x}#copy", line.at.as_micros()));
        let texts = [&line.what, &line.detail].map(|text| string(format!("-{text}")));
        item.insert("l".to_owned(), AttributeValue::L(texts.to_vec()));
        item.insert("c".to_owned(), number(line.at.as_micros()));
        item.insert("ra".to_owned(), number(line.at.as_micros()));
        item.insert("ro".to_owned(), string(self.shards.history(id.as_bytes())));
        item
    }
}

fn attributes_of<'a>(record: &'a Record, policy: i64, note: Option<&'a str>) -> RecordAttributes<'a> {
    RecordAttributes {
        id: &record.id,
        identity: &record.identity,
        version: record.version,
        birth: record.birth,
        owner: Some(record.owner).filter(|owner| *owner != record.birth),
        attempt: Some(record.attempt).filter(|attempt| *attempt != 1),
        state: record.state,
        flags: record.flags,
        is_tombstone: record.identity.is_forgotten(),
        fingerprint: record.fingerprint.as_ref().map(|fingerprint| fingerprint.to_bytes()),
        policy,
        lease: record.policy.lease,
        point: Some(record.point).filter(|point| *point != 0),
        due_at: record.due_at,
        expires_at: record.expires_at,
        purge_at: record.purge_at,
        note,
        status: record.note.status,
    }
}

/// Fails if the attributes are larger than an item may be.
fn check_item(attributes: &Item) -> Result<(), StoreError> {
    let bytes: usize = attributes.iter().map(|(name, value)| name.len() + value_bytes(value)).sum();
    match bytes <= ITEM_BYTES_MAX {
        true => Ok(()),
        false => {
            let why = format!("a row needs an item of {bytes} bytes, and DynamoDB takes {ITEM_BYTES_MAX}");
            Err(StoreError::lasting(NAME, "check rows", why).unwritten())
        }
    }
}

/// Returns at least as many bytes as DynamoDB counts for a value.
fn value_bytes(value: &AttributeValue) -> usize {
    const NUMBER: usize = 21;
    const NESTED: usize = 4;
    match value {
        AttributeValue::B(bytes) => bytes.as_ref().len(),
        AttributeValue::S(text) => text.len(),
        AttributeValue::L(values) => values.iter().map(|value| NESTED + value_bytes(value)).sum(),
        AttributeValue::M(values) => {
            values.iter().map(|(name, value)| NESTED + name.len() + value_bytes(value)).sum()
        }
        _ => NUMBER,
    }
}

/// Returns the lines of one item with the names of their kinds as they are stored.
fn copied_lines(item: &Item) -> Vec<CopiedLine> {
    let at = Timestamp::from_micros(get_number(item, "c").unwrap_or_default());
    let texts = crate::browse::texts_of(item);
    let lines = texts.chunks_exact(2).map(|line| CopiedLine {
        at,
        what: line[0].to_owned(),
        detail: line[1].to_owned(),
    });
    lines.collect()
}

const EXPORT: &str = "export";
const IMPORT: &str = "import";

/// Most bytes of the attributes of an item: the service takes 400 KiB, with the key and the overhead of each nested value.
const ITEM_BYTES_MAX: usize = 400 * 1024 - 256;

/// Rows of one page or batch that are read or written at once.
const AT_ONCE: usize = 16;
