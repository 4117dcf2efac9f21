//! Actions on many records: a preview shows what an action would change, and the action names the versions that the
//! preview showed, so that it cannot change more.

use futures_util::StreamExt;
use futures_util::stream;
use ibid_core::change::StoredRecord;
use ibid_core::machine::{self, Event, Observation, ObservedBy, Verdict};
use ibid_core::operator_action::OperatorAction;
use ibid_core::record::{Nonce, Version};
use ibid_core::scope::RecordId;
use ibid_core::store::{Cursor, RecordFilter, StoreError};
use ibid_core::time::Timestamp;

use super::{Operator, OperatorError};

/// An action on each of many records.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a tool for operators has to offer every action")]
pub enum BulkAction {
    /// Settle an unknown record with the outcome that the operator found.
    Resolve(Observation),
    /// Clear the dead-letter flag; change nothing else.
    Acknowledge,
    /// Remove the stored response, so that the next request under the key runs as new.
    Forget,
}

impl BulkAction {
    pub(super) fn event<'a>(&'a self, nonce: Nonce, as_of: Timestamp, act: &'a OperatorAction) -> Event<'a> {
        match self {
            BulkAction::Resolve(observation) => Event::Observed {
                nonce,
                by: ObservedBy::Operator(act),
                what: observation,
                as_of,
                jitter: 0.0,
            },
            BulkAction::Acknowledge => Event::Acknowledged { nonce, act },
            BulkAction::Forget => Event::Forget { nonce, act },
        }
    }
}

/// The records that an action would change.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BulkPreview {
    /// The records that it would change, at most [`BULK_MAX`].
    pub records: Vec<StoredRecord>,
    /// Number of matching records that the action cannot change.
    pub left_alone: u64,
    /// The cursor of the next preview, if more records match.
    pub next: Option<Cursor>,
}

/// A record at the version that the operator saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenVersion {
    /// Id of the record.
    pub id: RecordId,
    /// Version that the operator saw.
    pub version: Version,
}

impl Operator {
    /// Returns the matching records that `action` would change. Writes nothing.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn preview(
        &self,
        filter: RecordFilter,
        action: &BulkAction,
    ) -> Result<BulkPreview, StoreError> {
        // The decision does not depend on who acts, so a placeholder will do.
        let act = OperatorAction::new("preview", "a preview").expect("a name and a reason");
        let page = self.find(filter.with(|filter| filter.limit = filter.limit.min(BULK_MAX))).await?;
        let matching = page.records.len();
        let changes = |stored: &StoredRecord| {
            let event = action.event(Nonce(0), stored.now, &act);
            matches!(machine::decide(Some(&stored.record), &event, stored.now), Verdict::Write(..))
        };
        let records: Vec<StoredRecord> = page.records.into_iter().filter(changes).collect();
        Ok(BulkPreview { left_alone: (matching - records.len()) as u64, records, next: page.next })
    }

    /// Applies `action` to each of these records, unless it has changed since it was seen. Returns one result per
    /// record, in their order. Of more than [`BULK_MAX`] records only the first are touched.
    ///
    /// # Errors
    ///
    /// Each record has its own result, and fails as [`Operator::resolve`] does. One failure stops no other.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some of the records are changed, each of them whole, and the others are not. Take a new preview
    /// to see which are left.
    pub async fn apply(
        &self,
        seen: &[SeenVersion],
        action: &BulkAction,
        act: &OperatorAction,
    ) -> Vec<(RecordId, Result<StoredRecord, OperatorError>)> {
        let one = async |seen: &SeenVersion| {
            (seen.id, self.act_on_record(seen.id, Some(seen.version), action, act).await)
        };
        let bounded = seen.iter().take(BULK_MAX as usize);
        stream::iter(bounded.map(one)).buffered(AT_ONCE).collect().await
    }
}

/// Most records that one call changes: some seconds of work, and a list that an operator can still read.
pub const BULK_MAX: u32 = 500;

/// Actions that run at once: enough to share commits, few enough that requests do not notice.
const AT_ONCE: usize = 16;
