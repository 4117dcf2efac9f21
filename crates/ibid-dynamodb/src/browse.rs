//! Questions of operators. There is no order and no count: a list reads the table page by page.

use std::time::{Duration, Instant};

use ibid_core::change::{HistoryKind, HistoryLine, StoredRecord};
use ibid_core::fingerprint::{Fingerprint, SecretId};
use ibid_core::reap::{ReapCount, ReapTarget};
use ibid_core::scope::RecordId;
use ibid_core::store::{BoxFuture, BrowseStore, Cursor, Page, RecordCounts, RecordFilter, StoreError};
use ibid_core::time::Timestamp;

use crate::DynamoStore;
use crate::client::{run_all, send_one};
use crate::item::{Item, RECORD, get_bytes, get_id, get_number, get_text, is_tombstone, key, string};

impl BrowseStore for DynamoStore {
    /// Lists in the order of a scan, which is none. A page may be short, or empty, before the last one.
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        const OP: &str = "list records";
        Box::pin(async move {
            let (low, high) = filter.prefix.as_ref().map_or(ID_RANGE, |prefix| prefix.bounds());
            if low == high {
                let stored = self.load_record(OP, low).await?;
                let items =
                    stored.into_iter().filter(|stored| filter.fits(&stored.record, stored.now)).collect();
                return Ok(Page { items, next: None });
            }
            if filter.limit == 0 {
                return Ok(Page::default());
            }
            let mut after = filter.after.as_ref().map(|cursor| cursor.0.to_vec());
            let (mut items, started) = (Vec::new(), Instant::now());
            loop {
                let (page, next) = self.scan_records(OP, after.take(), None).await?;
                let in_range =
                    page.iter().filter(|item| get_id(item).is_some_and(|id| low <= id && id <= high));
                let reads =
                    in_range.map(|item| -> BoxFuture<'_, _> { Box::pin(self.read_or_pass_over(OP, item)) });
                for stored in run_all(reads.collect(), AT_ONCE).await? {
                    let Some(stored) = stored.filter(|stored| filter.fits(&stored.record, stored.now)) else {
                        continue;
                    };
                    let id = stored.record.id;
                    items.push(stored);
                    if items.len() == filter.limit as usize {
                        let next = Some(Cursor(position(id.as_bytes(), RECORD).into()));
                        return Ok(Page { items, next });
                    }
                }
                let Some(next) = next else { return Ok(Page { items, next: None }) };
                if started.elapsed() > LIST_TIME_MAX {
                    return Ok(Page { items, next: Some(Cursor(next.into())) });
                }
                after = Some(next);
            }
        })
    }

    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<HistoryLine>, StoreError>> {
        Box::pin(async move {
            let items = self.query("read history", id, "h#", None).await?;
            Ok(items.iter().flat_map(lines_of).collect())
        })
    }

    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>> {
        // Counting would read the whole table.
        Box::pin(std::future::ready(Ok(RecordCounts::default())))
    }

    fn count_reapable(&self, target: ReapTarget) -> BoxFuture<'_, Result<ReapCount, StoreError>> {
        Box::pin(self.count_ripe(target))
    }

    fn find_unknown_secret(
        &self,
        known: Vec<SecretId>,
    ) -> BoxFuture<'_, Result<Option<SecretId>, StoreError>> {
        Box::pin(async move {
            let mut after = None;
            loop {
                let (page, next) = self.scan_records("look for secrets", after, Some("i, k, h, g")).await?;
                let live = page.iter().filter(|item| !is_tombstone(item));
                let mut secrets = live
                    .filter_map(|item| Fingerprint::from_bytes(get_bytes(item, "h")?))
                    .map(|print| print.secret());
                if let Some(secret) = secrets.find(|secret| !known.contains(secret)) {
                    return Ok(Some(secret));
                }
                after = match next {
                    Some(next) => Some(next),
                    None => return Ok(None),
                };
            }
        })
    }
}

impl DynamoStore {
    /// Reads one page of the table: its records, and the position of the next page.
    ///
    /// A scan passes over the other items of the table, so a page may have none.
    async fn scan_records(
        &self,
        op: &'static str,
        after: Option<Vec<u8>>,
        projection: Option<&str>,
    ) -> Result<(Vec<Item>, Option<Vec<u8>>), StoreError> {
        let start = after.as_deref().and_then(start_key);
        let scan = self
            .request()
            .scan()
            .table_name(&self.table)
            .consistent_read(true)
            .filter_expression("k = :r")
            .expression_attribute_values(":r", string(RECORD))
            .set_projection_expression(projection.map(str::to_owned))
            .set_exclusive_start_key(start);
        let page =
            send_one(op, None, || scan.clone().send()).await.map_err(|error| error.into_store_error(op))?;
        let next = page
            .last_evaluated_key
            .as_ref()
            .and_then(|last| Some(position(get_bytes(last, "i")?, get_text(last, "k")?)));
        Ok((page.items.unwrap_or_default(), next))
    }
}

/// Returns the position behind an item: the length of its id, the id, and the sort key.
pub(crate) fn position(id: &[u8], kind: &str) -> Vec<u8> {
    [&[u8::try_from(id.len()).unwrap_or(u8::MAX)], id, kind.as_bytes()].concat()
}

/// Returns the key of the item at this position; `None` if this is no position.
pub(crate) fn start_key(position: &[u8]) -> Option<Item> {
    let (length, rest) = position.split_first()?;
    let (id, kind) = rest.split_at_checked(usize::from(*length))?;
    Some(key(id, std::str::from_utf8(kind).ok()?))
}

/// Returns the texts of an item with lines of history: the kind and the detail of each.
pub(crate) fn texts_of(item: &Item) -> Vec<&str> {
    let texts = item.get("l").and_then(|lines| lines.as_l().ok()).into_iter().flatten();
    texts.filter_map(|text| text.as_s().ok()?.strip_prefix('-')).collect()
}

fn lines_of(item: &Item) -> Vec<HistoryLine> {
    let at = Timestamp::from_micros(get_number(item, "c").unwrap_or_default());
    let texts = texts_of(item);
    let lines = texts.chunks_exact(2).map(|line| HistoryLine {
        at,
        what: HistoryKind::from_name(line[0]),
        detail: line[1].to_owned(),
    });
    lines.collect()
}

/// The least id and the greatest.
const ID_RANGE: (RecordId, RecordId) =
    (RecordId::from_bytes([0; RecordId::LEN]), RecordId::from_bytes([0xff; RecordId::LEN]));

/// Time after which a list ends with what it has; its cursor continues.
const LIST_TIME_MAX: Duration = Duration::from_secs(5);

/// Records whose large responses are read at once.
const AT_ONCE: usize = 4;
