//! Rows that `ibid copy` takes from one store to another, whole: with their versions, births and instants.
//!
//! A store that can be the source or the target of a copy implements [`CopyStore`]: its clock, a page of rows, and a batch of
//! rows to store. `ibid::copy` has the protocol around it.

use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{BoxFuture, Cursor, Page, StoreError};
use crate::change::LoadedBody;
use crate::evidence::{StoredEvidence, encode_evidence};
use crate::fingerprint::Fingerprint;
use crate::record::{Nonce, Record};
use crate::response::SavedResponse;
use crate::scope::RecordId;
use crate::time::Timestamp;

/// A store whose rows can be copied to another store, and that takes copied rows.
///
/// Effects are not among these rows: they are copied between SQL stores, through [`SqlStore`](super::SqlStore).
pub trait CopyStore: Send + Sync {
    /// Returns the store's clock, as it would set an instant now.
    fn clock(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>>;

    /// Returns one page of rows, at most `limit`, in an order of the store's choice in which no row moves.
    ///
    /// # Errors
    ///
    /// A row that this program cannot read is an error. If it were passed over, its key could run again in the target.
    fn export(
        &self,
        part: CopyPart,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<CopyRow>, StoreError>>;

    /// Fails permanently if the store can't hold one of these rows, for example because a body is too large for it. Nothing is
    /// written. A copy asks this about all rows before it closes its source.
    fn check(&self, rows: Vec<CopyRow>) -> BoxFuture<'_, Result<(), StoreError>> {
        let _ = rows;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Stores `rows` exactly as they are, each in place of an earlier version of itself: a record by its id, the history of a
    /// record by the record's id, evidence by the name of its event. The rows are on disk when this returns.
    ///
    /// T1 copies a batch and dies before it has noted that; a row of it changes in the source; T2 copies the batch again. If the
    /// row of T1 stayed, source and target would differ, however often the copy is continued.
    ///
    /// Nothing is stored unless `fence` holds. A store tests that in the same transaction if it has one for the whole batch. Otherwise
    /// it tests it just before it writes, and only moves rows forward: a record to a later version of the same generation, evidence
    /// from open to used, a history to more lines. Then a batch that is late overwrites nothing that was written since.
    ///
    /// # Errors
    ///
    /// Fails permanently if the fence does not hold. After another error some rows may be stored; the caller sends the batch
    /// again.
    fn import(&self, fence: SettingFence, rows: Vec<CopyRow>) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// A setting that must have this value for a batch of rows to be stored.
///
/// T1 copies and is stopped in the middle of a batch; T2 resumes the copy, ends it and opens the target, where rows are used and
/// removed; T1 wakes up and must store none of them again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingFence {
    /// Name of the setting.
    pub name: &'static str,
    /// Value that it must have.
    pub value: Bytes,
}

/// The kinds of rows, each of which is read page by page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPart {
    /// Records with their responses and bodies.
    Records,
    /// The history of each record, also of records that are gone.
    History,
    /// Webhook evidence, also used and dismissed: its event must not count a second time.
    Evidence,
}

/// One row of a copy.
#[derive(Clone, Debug, PartialEq)]
pub enum CopyRow {
    /// A record with its response and bodies.
    Record(Box<CopiedRecord>),
    /// The history of one record.
    History(CopiedHistory),
    /// A piece of evidence.
    Evidence(Box<CopiedEvidence>),
}

/// A record with everything that is stored for its generation.
#[derive(Clone, Debug, PartialEq)]
pub struct CopiedRecord {
    /// The record. A tombstone has the [forgotten identity](crate::scope::Identity::is_forgotten).
    pub record: Arc<Record>,
    /// The response, if one is stored.
    pub response: Option<SavedResponse>,
    /// Stored request and results of phases.
    pub bodies: Vec<LoadedBody>,
}

/// All lines of one record's history, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedHistory {
    /// Id of the record, which may be gone.
    pub id: RecordId,
    /// Its lines, oldest first.
    pub lines: Vec<CopiedLine>,
}

/// One line of history, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedLine {
    /// Instant of the event.
    pub at: Timestamp,
    /// Name of the kind. It may be one that this version does not know.
    pub what: String,
    /// Text for an operator.
    pub detail: String,
}

/// A piece of evidence with the end of its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedEvidence {
    /// The evidence as it is stored.
    pub stored: StoredEvidence,
    /// Instant at which it may be deleted.
    pub purge_at: Timestamp,
}

impl CopyRow {
    /// Returns the row with all its instants moved to another clock.
    #[must_use]
    pub fn shift(self, by: ClockShift) -> CopyRow {
        match self {
            CopyRow::Record(mut row) => {
                let record = Arc::make_mut(&mut row.record);
                record.created_at = by.apply(record.created_at);
                let instants = [
                    &mut record.ran_at,
                    &mut record.completed_at,
                    &mut record.due_at,
                    &mut record.expires_at,
                    &mut record.purge_at,
                ];
                instants.into_iter().flatten().for_each(|at| *at = by.apply(*at));
                if let Some(at) = &mut record.note.absent_at {
                    *at = by.apply(Timestamp::from_micros(*at)).as_micros();
                }
                CopyRow::Record(row)
            }
            CopyRow::History(mut row) => {
                row.lines.iter_mut().for_each(|line| line.at = by.apply(line.at));
                CopyRow::History(row)
            }
            CopyRow::Evidence(mut row) => {
                row.stored.as_of = by.apply(row.stored.as_of);
                row.purge_at = by.apply(row.purge_at);
                CopyRow::Evidence(row)
            }
        }
    }

    /// Returns a digest of everything in the row.
    pub fn digest(&self) -> RowDigest {
        let mut hash = RowHash::default();
        match self {
            CopyRow::Record(row) => row.hash(&mut hash),
            CopyRow::History(row) => {
                hash.bytes(row.id.as_bytes());
                for line in &row.lines {
                    hash.instant(Some(line.at)).text(&line.what).text(&line.detail);
                }
            }
            CopyRow::Evidence(row) => {
                let CopiedEvidence { stored: StoredEvidence { evidence, as_of, open }, purge_at } = &**row;
                hash.text(&evidence.name.source).text(&evidence.name.event);
                hash.bytes(evidence.about.id().as_bytes()).nonce(evidence.owner);
                hash.bytes(&encode_evidence(evidence).unwrap_or_default());
                hash.instant(Some(*as_of)).instant(Some(*purge_at)).number(u64::from(*open));
            }
        }
        hash.finish()
    }
}

impl CopiedRecord {
    fn hash(&self, hash: &mut RowHash) {
        let record = &*self.record;
        let Record { identity, version, note, .. } = record;
        hash.bytes(record.id.as_bytes());
        hash.text(identity.tenant.as_str()).text(&identity.operation.method).text(&identity.operation.path);
        hash.text(identity.key.as_str());
        hash.number(version.count.into()).nonce(Some(version.nonce));
        hash.nonce(Some(record.birth)).nonce(Some(record.owner)).number(record.attempt.into());
        hash.number(record.state.code().into()).number(record.flags.bits().into());
        hash.maybe_bytes(
            record.fingerprint.as_ref().map(Fingerprint::to_bytes).as_ref().map(|bytes| &bytes[..]),
        );
        hash.bytes(&record.policy.to_bytes()).number(record.point.into());
        let instants =
            [record.ran_at, record.completed_at, record.due_at, record.expires_at, record.purge_at];
        hash.instant(Some(record.created_at));
        for at in instants {
            hash.instant(at);
        }
        hash.maybe_bytes(note.to_json().as_ref().map(|text| text.as_bytes()));
        hash.number(note.status.map_or(u64::MAX, u64::from));
        match &self.response {
            None => hash.number(0),
            Some(SavedResponse::Plain(response)) => {
                hash.number(1).bytes(&response.lines()).bytes(&response.body)
            }
            Some(SavedResponse::Sealed { key_id, data }) => hash.number(2).text(key_id).bytes(data),
        };
        let mut bodies: Vec<_> = self.bodies.iter().collect();
        bodies.sort_unstable_by_key(|body| body.kind);
        for LoadedBody { kind, data } in bodies {
            hash.number((*kind).into()).bytes(data);
        }
    }
}

/// Hashes the fields of a row, each framed by its length.
#[derive(Debug, Default)]
pub struct RowHash(Sha256);

impl RowHash {
    /// Adds bytes, framed by their length.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut RowHash {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
        self
    }

    /// Adds bytes, or their absence.
    pub fn maybe_bytes(&mut self, bytes: Option<&[u8]>) -> &mut RowHash {
        match bytes {
            Some(bytes) => self.bytes(bytes),
            None => self.number(u64::MAX),
        }
    }

    /// Adds text, framed by its length.
    pub fn text(&mut self, text: &str) -> &mut RowHash {
        self.bytes(text.as_bytes())
    }

    /// Adds a number of fixed width.
    pub fn number(&mut self, number: u64) -> &mut RowHash {
        self.0.update(number.to_be_bytes());
        self
    }

    /// Adds an instant, or its absence.
    pub fn instant(&mut self, at: Option<Timestamp>) -> &mut RowHash {
        let bytes = at.map(|at| at.as_micros().to_be_bytes());
        self.maybe_bytes(bytes.as_ref().map(|bytes| &bytes[..]))
    }

    /// Adds a nonce, or its absence.
    pub fn nonce(&mut self, nonce: Option<Nonce>) -> &mut RowHash {
        let bytes = nonce.map(|nonce| nonce.0.to_be_bytes());
        self.maybe_bytes(bytes.as_ref().map(|bytes| &bytes[..]))
    }

    /// Returns the digest of all that was added.
    pub fn finish(self) -> RowDigest {
        let bytes: [u8; 32] = self.0.finalize().into();
        let mut lanes = [0; 4];
        for (lane, bytes) in lanes.iter_mut().zip(bytes.as_chunks().0) {
            *lane = u64::from_be_bytes(*bytes);
        }
        RowDigest(lanes)
    }
}

/// The digest of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowDigest([u64; 4]);

/// The number of some rows, and a digest of them that does not depend on their order: two stores list in different orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RowTotals {
    /// Number of rows that were added.
    pub count: u64,
    /// Sum of their digests, in four lanes.
    pub sum: [u64; 4],
}

impl RowTotals {
    /// Adds one row by its digest.
    pub fn add(&mut self, digest: RowDigest) {
        self.count += 1;
        self.sum.iter_mut().zip(digest.0).for_each(|(sum, lane)| *sum = sum.wrapping_add(lane));
    }
}

/// The difference between the clocks of two stores, in microseconds: the target's less the source's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockShift(pub i64);

impl ClockShift {
    /// Computes the difference from readings that were taken one after the other: the source's clock, the target's, and the
    /// source's again. Returns `None` if they contradict each other, because a clock was set meanwhile, or if there are none.
    ///
    /// A reading bounds the difference from both sides. If zero is within all bounds, the clocks may be the same and it is
    /// zero. Otherwise it is the upper bound, at most a round trip too much: nothing expires early in the target.
    pub fn of_readings(readings: &[(Timestamp, Timestamp, Timestamp)]) -> Option<ClockShift> {
        let between = |to: Timestamp, from: Timestamp| to.as_micros().saturating_sub(from.as_micros());
        let high = readings.iter().map(|(before, target, _)| between(*target, *before)).min()?;
        let low = readings.iter().map(|(_, target, after)| between(*target, *after)).max()?;
        match (low <= high, low <= 0 && high >= 0) {
            (false, _) => None,
            (true, true) => Some(ClockShift(0)),
            (true, false) => Some(ClockShift(high)),
        }
    }

    /// Returns an instant of the source's clock as the target's clock had it.
    pub fn apply(self, at: Timestamp) -> Timestamp {
        Timestamp::from_micros(at.as_micros().saturating_add(self.0))
    }

    /// Returns the difference in the other direction.
    #[must_use]
    pub fn reverse(self) -> ClockShift {
        ClockShift(self.0.saturating_neg())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shift(readings: &[(i64, i64, i64)]) -> Option<i64> {
        let at = Timestamp::from_micros;
        let readings: Vec<_> = readings.iter().map(|(a, b, c)| (at(*a), at(*b), at(*c))).collect();
        ClockShift::of_readings(&readings).map(|shift| shift.0)
    }

    #[test]
    fn the_tightest_bounds_count() {
        assert_eq!(shift(&[]), None);
        assert_eq!(shift(&[(100, 105, 110)]), Some(0), "one clock, read in turn");
        // The target is 1,000 ahead; the second round trip was shorter.
        assert_eq!(shift(&[(100, 1_150, 200), (300, 1_310, 320)]), Some(1_010));
        // It is 1,000 behind: the result is never below that.
        assert_eq!(shift(&[(5_000, 4_010, 5_020)]), Some(-990));
        assert_eq!(shift(&[(100, 1_105, 110), (200, 9_205, 210)]), None, "the target's clock was set");
    }

    #[test]
    fn an_instant_moved_there_and_back_is_the_same() {
        let by = ClockShift(-86_400_000_000);
        for at in [0, 1_700_000_000_000_000, -5] {
            let at = Timestamp::from_micros(at);
            assert_eq!(by.reverse().apply(by.apply(at)), at);
        }
    }

    #[test]
    fn totals_do_not_depend_on_the_order() {
        let row = |text: &str| {
            let mut hash = RowHash::default();
            hash.text(text);
            hash.finish()
        };
        let totals = |texts: [&str; 3]| {
            let mut totals = RowTotals::default();
            texts.into_iter().for_each(|text| totals.add(row(text)));
            totals
        };
        assert_eq!(totals(["a", "b", "c"]), totals(["c", "a", "b"]));
        assert_ne!(totals(["a", "b", "c"]), totals(["a", "b", "b"]));
        assert_ne!(totals(["ab", "c", ""]), totals(["a", "bc", ""]), "fields are framed");
    }
}
