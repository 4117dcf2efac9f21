//! Lines of history as items, each in the transaction of its change.
//!
//! An item is named by the instant of its lines, so that a query returns them in order, and by the version of the change. A change of
//! a record has a condition that lets it in once. A change that only adds lines has none, and is written twice if its name differs:
//! the writer therefore remembers the instant of a send whose outcome is not known, and sends the change again under the same name.

use std::collections::VecDeque;

use aws_sdk_dynamodb::types::AttributeValue;
use ibid_core::change::Change;
use ibid_core::record::Nonce;
use ibid_core::time::Timestamp;
use parking_lot::Mutex;

use crate::DynamoStore;
use crate::item::{Item, key, number, string};

/// Instants of changes whose send had no reply, newest last.
#[derive(Debug, Default)]
pub(crate) struct LinesInDoubt(Mutex<VecDeque<(Nonce, Timestamp)>>);

impl LinesInDoubt {
    /// Returns the instant of an earlier send of the change with this nonce, or `now`.
    fn instant(&self, nonce: Nonce, now: Timestamp) -> Timestamp {
        self.0.lock().iter().find(|(of, _)| *of == nonce).map_or(now, |(_, at)| *at)
    }

    /// Remembers the instant of a send that may have been executed. An earlier one stays.
    pub(crate) fn note(&self, nonce: Nonce, at: Timestamp) {
        let mut sends = self.0.lock();
        if sends.iter().all(|(of, _)| *of != nonce) {
            if sends.len() == IN_DOUBT_MAX {
                sends.pop_front();
            }
            sends.push_back((nonce, at));
        }
    }

    /// Forgets a change that was answered.
    pub(crate) fn forget(&self, nonce: Nonce) {
        self.0.lock().retain(|(of, _)| *of != nonce);
    }
}

impl DynamoStore {
    /// Returns the item with the lines of history of a change.
    pub(crate) fn history_item(&self, change: &Change, now: Timestamp) -> Option<Item> {
        if change.history.is_empty() {
            return None;
        }
        let at = self.lines_in_doubt.instant(change.nonce, now);
        let version = change.version();
        let kind = format!("h#{:016x}#{:08x}#{:016x}", at.as_micros(), version.count, version.nonce.0);
        let mut item = key(change.id.as_bytes(), &kind);
        let lines = change.history.iter().flat_map(|line| [line.what.name(), &line.detail]);
        // An empty text is refused by old servers, so every text has a mark before it.
        let lines = lines.map(|text| string(format!("-{text}"))).collect();
        item.insert("l".to_owned(), AttributeValue::L(lines));
        item.insert("c".to_owned(), number(at.as_micros()));
        item.insert("ro".to_owned(), string(self.shards.history(change.id.as_bytes())));
        item.insert("ra".to_owned(), number(at.as_micros()));
        Some(item)
    }
}

/// Changes whose outcome is not known, at a time. A line that is only added belongs to a late response, of which an outage leaves some;
/// past this bound the oldest may have its line twice.
const IN_DOUBT_MAX: usize = 1024;
