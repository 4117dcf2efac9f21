//! Rows of a copy, out of the buckets and into them.
//!
//! Records are read by bucket and id. No order of the store has that order: those of the states would lose a record that ends
//! while it is waited for, because it moves to an order that was read before. So a bucket's ids are read all at once, sorted here,
//! and kept until the next bucket.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::try_join_all;
use ibid_core::change::BodyKind;
use ibid_core::evidence::encode_evidence;
use ibid_core::row::UnreadableRowError;
use ibid_core::scope::RecordId;
use ibid_core::store::copy::{
    CopiedEvidence, CopiedHistory, CopiedLine, CopiedRecord, CopyPart, CopyRow, SettingFence,
};
use ibid_core::store::{BoxFuture, CopyStore, Cursor, Page, Store, StoreError};
use ibid_core::time::Timestamp;
use redis::Value;

use super::browse::read_line;
use super::error::Failure;
use super::evidence::{encode_columns, event_id, read_evidence};
use super::key::{self, Bucket};
use super::reply::{bytes, number, time};
use super::script::{self, Script};
use super::{CHANGE_BYTES_MAX, NAME, RedisStore, error_of, evidence, read_bodies, record_bytes};

/// Ids of the rows of one part in one bucket, in their order.
#[derive(Clone)]
pub(super) struct BucketMembers {
    part: CopyPart,
    /// First byte of the ids that the bucket is for.
    byte: u8,
    members: Arc<[RecordId]>,
}

impl CopyStore for RedisStore {
    /// In a cluster, reads the clock of the server that has the settings.
    fn clock(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        Box::pin(async move {
            let run = self.nodes.run(&script::CLOCK, Bucket::SETTINGS, &[key::settings()], &[], None).await;
            let read = run.and_then(|reply| match reply {
                Value::Array(parts) => time(&parts),
                _ => Err(Failure::reply()),
            });
            read.map_err(error_of("read the clock"))
        })
    }

    fn export(
        &self,
        part: CopyPart,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<CopyRow>, StoreError>> {
        Box::pin(async move { self.export_page(part, after, limit).await.map_err(error_of(EXPORT)) })
    }

    fn check(&self, rows: Vec<CopyRow>) -> BoxFuture<'_, Result<(), StoreError>> {
        let fits = |row: &CopyRow| match row {
            CopyRow::Record(row) => self.record_arguments(row).map(drop),
            CopyRow::History(row) => history_arguments(row).map(drop),
            CopyRow::Evidence(row) => evidence_arguments(row).map(drop),
        };
        let checked = rows.iter().try_for_each(fits).map_err(error_of("check rows"));
        Box::pin(std::future::ready(checked))
    }

    /// Tests the fence in the script of each row. In a cluster the settings are on another server, so it is tested just before
    /// the batch is written, and the scripts only move rows forward.
    fn import(&self, fence: SettingFence, rows: Vec<CopyRow>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            if self.nodes.is_cluster() && self.setting(fence.name).await?.as_ref() != Some(&fence.value) {
                return Err(StoreError::lasting(NAME, IMPORT, FENCE_LOST).unwritten());
            }
            for part in rows.chunks(ROWS_AT_A_TIME) {
                let imports = part.iter().map(async |row| match row {
                    CopyRow::Record(row) => self.import_record(&fence, row).await,
                    CopyRow::History(row) => self.import_history(&fence, row).await,
                    CopyRow::Evidence(row) => self.import_evidence(&fence, row).await,
                });
                try_join_all(imports).await.map_err(error_of(IMPORT))?;
            }
            Ok(())
        })
    }
}

impl RedisStore {
    /// Returns a page of rows. Its cursor is the bucket's byte and the last id.
    async fn export_page(
        &self,
        part: CopyPart,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<CopyRow>, Failure> {
        let (first, mut behind) = match &after {
            None => (0, None),
            Some(cursor) => {
                let position = parse_cursor(cursor).ok_or_else(|| Failure::Lasting("not a cursor".into()))?;
                (position.0, Some(position.1))
            }
        };
        let mut places: Vec<(u8, RecordId)> = Vec::new();
        for byte in first..=u8::MAX {
            let members = self.members(part, byte, behind.is_some()).await?;
            let start = behind.take().map_or(0, |behind| members.partition_point(|member| *member <= behind));
            let missing = (limit as usize + 1).saturating_sub(places.len());
            places.extend(members[start..].iter().take(missing).map(|member| (byte, *member)));
            if places.len() > limit as usize {
                break;
            }
        }
        let Page { items: places, next } = Page::new(places, limit, |(byte, member)| {
            Cursor([&[*byte][..], member.as_bytes()].concat().into())
        });
        let mut items = Vec::with_capacity(places.len());
        for some in places.chunks(ROWS_AT_A_TIME) {
            let rows = some.iter().map(async |(byte, member)| match part {
                CopyPart::Records => self.export_record(member).await,
                CopyPart::History => self.export_history(member).await,
                CopyPart::Evidence => self.export_evidence(Bucket::of_byte(*byte), member).await,
            });
            items.extend(try_join_all(rows).await?.into_iter().flatten());
        }
        Ok(Page { items, next })
    }

    /// Returns the ids of all rows of a bucket, in their order: those that were read last if `is_within`, because the page before
    /// ended in this bucket.
    pub(super) async fn members(
        &self,
        part: CopyPart,
        byte: u8,
        is_within: bool,
    ) -> Result<Arc<[RecordId]>, Failure> {
        let known = self.copy_members.lock().clone().filter(|known| (known.part, known.byte) == (part, byte));
        if let Some(known) = known.filter(|_| is_within) {
            return Ok(known.members);
        }
        let bucket = Bucket::of_byte(byte);
        let orders = match part {
            CopyPart::Records => bucket.orders().collect(),
            CopyPart::History => vec![bucket.histories()],
            // Evidence stays in it until it is purged, also used and dismissed.
            CopyPart::Evidence => vec![bucket.evidence_purge()],
        };
        let reply = self.nodes.run(&script::MEMBERS, bucket, &orders, &[], None).await?;
        let Value::Array(orders) = reply else { return Err(Failure::reply()) };
        let mut members = Vec::new();
        for order in &orders {
            let Value::Array(order) = order else { return Err(Failure::reply()) };
            for member in order {
                let id = bytes(member).and_then(|id| id.try_into().ok()).ok_or_else(Failure::reply)?;
                members.push(RecordId::from_bytes(id));
            }
        }
        members.sort_unstable();
        let members: Arc<[RecordId]> = members.into();
        *self.copy_members.lock() = Some(BucketMembers { part, byte, members: members.clone() });
        Ok(members)
    }

    async fn export_record(&self, id: &RecordId) -> Result<Option<CopyRow>, Failure> {
        let keys = [key::record(id), key::bodies(id)];
        let reply = self.nodes.run(&script::EXPORT_RECORD, Bucket::of(id), &keys, &[], None).await?;
        let Value::Array(mut parts) = reply else { return Err(Failure::reply()) };
        let Some(Value::Array(bodies)) = parts.pop() else { return Err(Failure::reply()) };
        let name = BodyKind::RESPONSE.to_string();
        let is_response = |pair: &&[Value]| pair.first().and_then(bytes) == Some(name.as_bytes());
        parts.extend(bodies.chunks(2).find(is_response).and_then(|pair| pair.get(1)).cloned());
        let Some(stored) = self.read_record(id, &parts).await? else { return Ok(None) };
        let bodies = read_bodies(&bodies, stored.record.birth);
        let row = CopiedRecord { record: stored.record, response: stored.response, bodies };
        Ok(Some(CopyRow::Record(Box::new(row))))
    }

    async fn export_history(&self, id: &RecordId) -> Result<Option<CopyRow>, Failure> {
        let lines = self.load_lines(id, u32::MAX).await?;
        let unreadable = || Failure::Lasting(Box::new(UnreadableRowError("not a line of history")));
        let lines: Vec<CopiedLine> =
            lines.iter().map(|line| read_line(line).ok_or_else(unreadable)).collect::<Result<_, _>>()?;
        Ok((!lines.is_empty()).then(|| CopyRow::History(CopiedHistory { id: *id, lines })))
    }

    async fn export_evidence(&self, bucket: Bucket, event: &RecordId) -> Result<Option<CopyRow>, Failure> {
        let keys = [bucket.key('e', event.as_bytes()), bucket.evidence_purge()];
        let arguments = [&event.as_bytes()[..]];
        let reply = self.nodes.run(&script::EXPORT_EVIDENCE, bucket, &keys, &arguments, None).await?;
        let Value::Array(parts) = reply else { return Err(Failure::reply()) };
        let [Value::BulkString(stored), Value::BulkString(score)] = &parts[..] else { return Ok(None) };
        let score: f64 =
            std::str::from_utf8(score).ok().and_then(|text| text.parse().ok()).ok_or_else(Failure::reply)?;
        // Scores are whole numbers below 2⁵³.
        let purge_at = Timestamp::from_micros(score as i64);
        let row = CopiedEvidence { stored: read_evidence(stored)?, purge_at };
        Ok(Some(CopyRow::Evidence(Box::new(row))))
    }

    /// Returns the arguments of the script that stores a record.
    fn record_arguments(&self, row: &CopiedRecord) -> Result<Vec<Vec<u8>>, Failure> {
        let record = &row.record;
        let (packed, apart) = record_bytes::pack(row, self.policies.number(&record.policy))?;
        let response = apart.map(|data| (BodyKind::RESPONSE, data));
        let bodies: Vec<(u32, &Bytes)> =
            response.into_iter().chain(row.bodies.iter().map(|body| (body.kind, &body.data))).collect();
        if packed.len() + bodies.iter().map(|(_, data)| data.len()).sum::<usize>() > CHANGE_BYTES_MAX {
            return Err(Failure::Lasting("a record's bodies are larger than a value of Redis".into()));
        }
        let mut arguments = vec![record.id.as_bytes().to_vec(), packed, record.policy.to_bytes()];
        for (kind, data) in bodies {
            arguments.extend([kind.to_string().into_bytes(), record_bytes::join_body(record.birth, data)]);
        }
        Ok(arguments)
    }

    async fn import_record(&self, fence: &SettingFence, row: &CopiedRecord) -> Result<(), Failure> {
        let (id, arguments) = (&row.record.id, self.record_arguments(row)?);
        let bucket = Bucket::of(id);
        let mut keys = vec![key::record(id), key::bodies(id)];
        keys.extend([bucket.policies(), bucket.letter_order()]);
        keys.extend(bucket.orders());
        self.run_fenced(&script::IMPORT_RECORD, bucket, fence, keys, &arguments).await.map(drop)
    }

    async fn import_history(&self, fence: &SettingFence, row: &CopiedHistory) -> Result<(), Failure> {
        if row.lines.is_empty() {
            return Ok(());
        }
        let arguments = history_arguments(row)?;
        let bucket = Bucket::of(&row.id);
        let keys = vec![key::history(&row.id), bucket.histories()];
        self.run_fenced(&script::IMPORT_HISTORY, bucket, fence, keys, &arguments).await.map(drop)
    }

    async fn import_evidence(&self, fence: &SettingFence, row: &CopiedEvidence) -> Result<(), Failure> {
        let (event, about) = (event_id(&row.stored.evidence.name), row.stored.evidence.about.id());
        let arguments = evidence_arguments(row)?;
        let pointer = (vec![key::evidence_pointer(&event)], [about.as_bytes().to_vec()]);
        let noted =
            self.run_fenced(&script::IMPORT_POINTER, Bucket::of(&event), fence, pointer.0, &pointer.1);
        if noted.await? == OTHER_SUBJECT {
            return Ok(());
        }
        let keys = evidence::keys(&about, &event).to_vec();
        let bucket = Bucket::of(&about);
        self.run_fenced(&script::IMPORT_EVIDENCE, bucket, fence, keys, &arguments).await.map(drop)
    }

    /// Runs a script that stores a row, behind the fence if the settings can be among its keys. Returns its reply.
    async fn run_fenced(
        &self,
        script: &Script,
        bucket: Bucket,
        fence: &SettingFence,
        mut keys: Vec<Vec<u8>>,
        row: &[Vec<u8>],
    ) -> Result<i64, Failure> {
        let mut arguments: Vec<&[u8]> = vec![b"", b""];
        if !self.nodes.is_cluster() {
            keys.push(key::settings());
            arguments = vec![fence.name.as_bytes(), &fence.value];
        }
        arguments.extend(row.iter().map(|argument| &argument[..]));
        match number(&self.nodes.run(script, bucket, &keys, &arguments, None).await?)? {
            0 => Err(Failure::Lasting(FENCE_LOST.into())),
            reply => Ok(reply),
        }
    }
}

/// Returns the arguments of the script that stores a history.
fn history_arguments(row: &CopiedHistory) -> Result<Vec<Vec<u8>>, Failure> {
    let mut arguments = vec![row.id.as_bytes().to_vec()];
    for CopiedLine { at, what, detail } in &row.lines {
        let text = format!("{what}\0{detail}");
        arguments.push([&record_bytes::pack_instant(*at)?[..], text.as_bytes()].concat());
    }
    Ok(arguments)
}

/// Returns the arguments of the script that stores evidence.
fn evidence_arguments(row: &CopiedEvidence) -> Result<[Vec<u8>; 3], Failure> {
    let CopiedEvidence { stored, purge_at } = row;
    let (event, about) = (event_id(&stored.evidence.name), stored.evidence.about.id());
    let Some(found) = encode_evidence(&stored.evidence) else {
        return Err(Failure::Lasting("evidence says nothing".into()));
    };
    if !(0..=SCORE_MAX).contains(&purge_at.as_micros()) {
        return Err(Failure::Lasting("evidence has an instant that a Redis store can't hold".into()));
    }
    let mut value = vec![u8::from(stored.open)];
    value.extend(record_bytes::pack_as_of(stored.as_of)?);
    value.extend(encode_columns(&about, &stored.evidence, &found));
    Ok([event.as_bytes().to_vec(), value, purge_at.as_micros().to_string().into_bytes()])
}

fn parse_cursor(cursor: &Cursor) -> Option<(u8, RecordId)> {
    let (byte, member) = cursor.0.split_first()?;
    Some((*byte, RecordId::from_bytes(member.try_into().ok()?)))
}

const EXPORT: &str = "export";
const IMPORT: &str = "import";
const FENCE_LOST: &str = "the mark of the copy has changed";

/// Reply to the pointer of an event that is known and about another record.
const OTHER_SUBJECT: i64 = 2;

/// Rows of one page or batch that are on their way at a time. With responses of the largest size that is stored by default (1 MiB)
/// they take three seconds on a network of 100 Mbit/s, less than the longest wait for a reply.
const ROWS_AT_A_TIME: usize = 32;

/// The largest number up to which a score holds all whole numbers.
const SCORE_MAX: i64 = (1 << 53) - 1;
