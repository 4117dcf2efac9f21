//! Records in this process's memory: for tests, examples and a first try. Nothing outlives the process.
//!
//! One lock around everything makes each call one step, which is all that the contract asks. It grows with the
//! records that are kept; `reap` is what shrinks it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ibid_core::change::{BodyKind, Change, Commit, Expect, History, Stamp, StoredRecord};
use ibid_core::evidence::{Evidence, EvidenceQuery, EvidenceStore, StoredEvidence, USED_KEPT_FOR};
use ibid_core::fingerprint::SecretId;
use ibid_core::reap::{CURSOR_START, ReapCount, ReapStep, ReapTarget};
use ibid_core::record::{Nonce, Record, RecordDetails, State, Version};
use ibid_core::scope::{Identity, RecordId};
use ibid_core::store::{
    BoxFuture, Browse, RecordCounts, RecordFilter, RenewOutcome, SetOutcome, Store, StoreError,
};
use ibid_core::time::Timestamp;

use super::clock::Clock;

/// A store in memory.
///
/// ```
/// use ibid::store::{clock::Clock, memory::MemoryStore};
/// let store = MemoryStore::new(Clock::system());
/// ```
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    rooms: Mutex<Rooms>,
}

impl MemoryStore {
    /// An empty store that goes by `clock`.
    pub fn new(clock: Clock) -> MemoryStore {
        MemoryStore { clock, rooms: Mutex::default() }
    }

    /// The lock and, read under it, the time: instants are in the order of the writes.
    fn enter(&self) -> (MutexGuard<'_, Rooms>, Timestamp) {
        // A panic elsewhere leaves no half-made step: every check stands before the first write of a Change.
        let rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        (rooms, now)
    }
}

impl Store for MemoryStore {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Result<Vec<Option<StoredRecord>>, StoreError>> {
        Box::pin(async move {
            let (rooms, now) = self.enter();
            Ok(ids.iter().map(|id| rooms.stored(id, now)).collect())
        })
    }

    fn commit(&self, changes: Vec<Arc<Change>>) -> BoxFuture<'_, Vec<Result<Commit, StoreError>>> {
        Box::pin(async move {
            let (mut rooms, now) = self.enter();
            changes.iter().map(|change| rooms.commit(change, now)).collect()
        })
    }

    fn renew(
        &self,
        leases: Vec<(RecordId, Version)>,
    ) -> BoxFuture<'_, Result<Vec<RenewOutcome>, StoreError>> {
        Box::pin(async move {
            let (mut rooms, now) = self.enter();
            Ok(leases.iter().map(|(id, version)| rooms.renew(id, *version, now)).collect())
        })
    }

    fn due(&self, state: State, limit: u32) -> BoxFuture<'_, Result<Vec<StoredRecord>, StoreError>> {
        Box::pin(async move {
            let (rooms, now) = self.enter();
            let (low, high) = ids();
            let longest_due_first = rooms.due.range((state, EARLIEST, low)..=(state, now, high));
            let found = longest_due_first.take(limit as usize);
            Ok(found.filter_map(|(_, _, id)| rooms.stored(id, now)).collect())
        })
    }

    fn reap(&self, course: ReapTarget, from: i64, limit: u32) -> BoxFuture<'_, Result<ReapStep, StoreError>> {
        Box::pin(async move {
            let (started, (mut rooms, now)) = (Instant::now(), self.enter());
            let reaped = match course {
                ReapTarget::Records => rooms.reap(Timestamp::from_micros(from), limit, now),
                ReapTarget::History { keep } => rooms.forget(keep, limit, now),
                // There is no outbox, and memory is the allocator's.
                ReapTarget::Effects { .. } | ReapTarget::Room => ReapStep::default(),
            };
            Ok(ReapStep { took: started.elapsed(), ..reaped })
        })
    }

    fn count_reapable(&self, course: ReapTarget) -> BoxFuture<'_, Result<ReapCount, StoreError>> {
        Box::pin(async move {
            let (rooms, now) = self.enter();
            Ok(ripe(&rooms, course, now))
        })
    }

    fn find_unknown_secret(
        &self,
        known: Vec<SecretId>,
    ) -> BoxFuture<'_, Result<Option<SecretId>, StoreError>> {
        Box::pin(async move {
            let room = self.enter();
            let mut named = room
                .0
                .rows
                .values()
                .filter(|row| !row.bare)
                .filter_map(|row| Some(row.record.fingerprint?.secret()));
            Ok(named.find(|secret| !known.contains(secret)))
        })
    }

    fn bodies(&self, id: RecordId, birth: Nonce) -> BoxFuture<'_, Result<Vec<(u32, Bytes)>, StoreError>> {
        Box::pin(async move { Ok(self.enter().0.bodies(&id, birth)) })
    }

    fn setting(&self, name: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move { Ok(self.enter().0.settings.get(&name).cloned()) })
    }

    fn compare_and_set(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> BoxFuture<'_, Result<SetOutcome, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            let mut rooms = self.enter().0;
            if rooms.settings.get(&name) == expected.as_ref() {
                rooms.settings.insert(name, value);
                return Ok(SetOutcome::Won);
            }
            Ok(SetOutcome::of(rooms.settings.get(&name).cloned(), &value))
        })
    }
}

impl Browse for MemoryStore {
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Vec<StoredRecord>, StoreError>> {
        Box::pin(async move {
            let (rooms, now) = self.enter();
            let (low, high) = filter.prefix.as_ref().map_or_else(ids, |prefix| prefix.bounds());
            let from = match filter.after {
                Some(after) if after >= low => Bound::Excluded(after),
                _ => Bound::Included(low),
            };
            let in_order = rooms.rows.range((from, Bound::Unbounded)).take_while(|(id, _)| **id <= high);
            let records = in_order.map(|(_, row)| &row.record).filter(|record| filter.fits(record, now));
            let stored = records.map(|record| StoredRecord { record: record.clone(), answer: None, now });
            Ok(stored.take(filter.limit as usize).collect())
        })
    }

    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<(Timestamp, History)>, StoreError>> {
        Box::pin(async move { Ok(self.enter().0.history.get(&id).cloned().unwrap_or_default()) })
    }

    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>> {
        Box::pin(async move {
            let mut counts = RecordCounts::default();
            let (rooms, now) = self.enter();
            for row in rooms.rows.values() {
                if let Some(place) = State::ALL.iter().position(|state| *state == row.record.state) {
                    counts.by_state[place] += 1;
                    let since = now.since(row.record.ran_at.unwrap_or(row.record.created_at));
                    counts.oldest[place] = counts.oldest[place].max(Some(since));
                }
                counts.dead_letters += u64::from(row.record.flags.dead_letter);
            }
            Ok(counts)
        })
    }
}

impl EvidenceStore for MemoryStore {
    fn insert_evidence(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> BoxFuture<'_, Result<(StoredEvidence, bool), StoreError>> {
        Box::pin(async move {
            let (mut rooms, now) = self.enter();
            let known = rooms.evidence.iter().find(|(kept, _)| kept.evidence.name == evidence.name);
            if let Some((kept, _)) = known {
                return Ok((kept.clone(), false));
            }
            let as_of = now.before(evidence.age);
            let seq = rooms.evidence.last().map_or(1, |(last, _)| last.seq + 1);
            let evidence = Evidence { age: Duration::ZERO, ..evidence };
            let kept = StoredEvidence { seq, evidence, as_of, open: true };
            rooms.evidence.push((kept.clone(), now.after(keep_for)));
            Ok((kept, true))
        })
    }

    fn open_evidence(
        &self,
        which: EvidenceQuery,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<StoredEvidence>, StoreError>> {
        Box::pin(async move {
            let rooms = self.enter().0;
            let open = rooms.evidence.iter().map(|(kept, _)| kept).filter(|kept| kept.open);
            let fits = open.filter(|kept| match which {
                EvidenceQuery::Of(id) => kept.evidence.about.id() == id,
                EvidenceQuery::After(seq) => kept.seq > seq,
            });
            Ok(fits.take(limit as usize).cloned().collect())
        })
    }

    fn dismiss_evidence(&self, seqs: Vec<i64>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let mut rooms = self.enter().0;
            let named = rooms.evidence.iter_mut().filter(|(kept, _)| seqs.contains(&kept.seq));
            named.for_each(|(kept, _)| kept.open = false);
            Ok(())
        })
    }

    fn purge_evidence(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let (mut rooms, now) = self.enter();
            let mut gone = 0;
            rooms.evidence.retain(|(_, purge_at)| {
                let goes = *purge_at <= now && gone < u64::from(limit);
                gone += u64::from(goes);
                !goes
            });
            Ok(gone)
        })
    }
}

fn ripe(rooms: &Rooms, course: ReapTarget, now: Timestamp) -> ReapCount {
    let mut ripe = ReapCount::default();
    match course {
        ReapTarget::Records => {
            for (_, id) in rooms.reap.range(..=(now, ids().1)) {
                let goes = rooms.rows.get(id).is_some_and(|row| row.record.is_purgeable(now));
                *(if goes { &mut ripe.remove } else { &mut ripe.strip }) += 1;
            }
        }
        ReapTarget::History { keep } => {
            let of_the_gone = rooms.history.iter().filter(|(id, _)| !rooms.rows.contains_key(id));
            let old = of_the_gone.flat_map(|(_, lines)| lines).filter(|(at, _)| at.after(keep) <= now);
            ripe.remove = old.count() as u64;
        }
        ReapTarget::Effects { .. } | ReapTarget::Room => {}
    }
    ripe
}

/// All that is kept, and the two orders in which upkeep asks for it.
#[derive(Debug, Default)]
struct Rooms {
    rows: BTreeMap<RecordId, Row>,
    /// Invariant: exactly the rows with a due instant.
    due: BTreeSet<(State, Timestamp, RecordId)>,
    /// Invariant: exactly the rows that will be removed, by when the reaper comes for them next.
    reap: BTreeSet<(Timestamp, RecordId)>,
    /// Outlives the records, as an audit does.
    history: HashMap<RecordId, Vec<(Timestamp, History)>>,
    settings: HashMap<String, Bytes>,
    /// In the order of arrival, each with its end.
    evidence: Vec<(StoredEvidence, Timestamp)>,
}

#[derive(Debug)]
struct Row {
    record: Arc<Record>,
    /// Whether it was stripped: a tombstone.
    bare: bool,
    /// By the code of its kind, each with the generation that wrote it.
    bodies: HashMap<u32, (Nonce, Bytes)>,
}

impl Row {
    /// When the reaper comes for it next: to strip it, and then to remove it. Not while a person must look at it.
    fn reap_at(&self) -> Option<Timestamp> {
        if self.record.flags.dead_letter {
            return None;
        }
        let purge_at = self.record.purge_at?;
        let stripped_by = if self.bare { None } else { self.record.expires_at };
        Some(stripped_by.map_or(purge_at, |at| at.min(purge_at)))
    }
}

impl Rooms {
    fn commit(&mut self, change: &Change, now: Timestamp) -> Result<Commit, StoreError> {
        if change.draft.is_some() && change.expect == Expect::Anything {
            return Err(StoreError::lasting(KIND, "commit", "a change of a record must say what it expects"));
        }
        let before = self.rows.get(&change.id).map(|row| &*row.record);
        let holds = match (change.expect, before) {
            (Expect::Anything, _) | (Expect::Absent, None) => true,
            (Expect::Version(version), Some(record)) => record.version == version,
            (Expect::Due(version), Some(record)) => record.version == version && record.is_due(now),
            (Expect::Absent, Some(_)) | (Expect::Version(_) | Expect::Due(_), None) => false,
        };
        if !holds {
            return Ok(Commit::Conflict(self.stored(&change.id, now).map(Box::new)));
        }
        let stamp = Stamp { now };
        if let Some(record) = change.applied(stamp, before) {
            self.put(change, record);
        }
        if let Some(name) = &change.uses {
            let used = self.evidence.iter_mut().find(|(kept, _)| kept.evidence.name == *name);
            if let Some((kept, purge_at)) = used {
                (kept.open, *purge_at) = (false, now.after(USED_KEPT_FOR));
            }
        }
        if !change.history.is_empty() {
            let lines = change.history.iter().map(|line| (now, line.clone()));
            self.history.entry(change.id).or_default().extend(lines);
        }
        Ok(Commit::Done(stamp))
    }

    fn put(&mut self, change: &Change, record: Arc<Record>) {
        let mut bodies = self.take(&change.id).map(|row| row.bodies).unwrap_or_default();
        if change.clears_bodies {
            bodies.clear();
        }
        for body in &change.bodies {
            bodies.insert(body.kind.code(), (record.birth, body.data.clone()));
        }
        self.due.extend(record.due_at.map(|at| (record.state, at, record.id)));
        self.shelve(Row { record, bare: false, bodies });
    }

    fn shelve(&mut self, row: Row) {
        self.reap.extend(row.reap_at().map(|at| (at, row.record.id)));
        self.rows.insert(row.record.id, row);
    }

    /// Removes what is past its time, and strips what is only expired.
    fn reap(&mut self, from: Timestamp, limit: u32, now: Timestamp) -> ReapStep {
        let oldest_first = self.reap.range((from, ids().0)..=(now, ids().1)).take(limit as usize);
        let ripe: Vec<(Timestamp, RecordId)> = oldest_first.copied().collect();
        let mut reaped = ReapStep::default();
        for (_, id) in &ripe {
            // What is in the order is on the shelf.
            let Some(mut row) = self.take(id) else { continue };
            if row.record.is_purgeable(now) {
                reaped.removed += 1;
                continue;
            }
            row.bodies.clear();
            row.bare = true;
            // A strip is a write like any other: whoever read the row before comes too late.
            let record = Arc::make_mut(&mut row.record);
            record.version.count += 1;
            record.identity = Arc::new(Identity::forgotten());
            record.note = RecordDetails::default();
            self.due.extend(row.record.due_at.map(|at| (row.record.state, at, *id)));
            self.shelve(row);
            reaped.stripped += 1;
        }
        if limit > 0 && ripe.len() == limit as usize {
            reaped.next = ripe.last().map(|(at, _)| at.as_micros());
        }
        reaped
    }

    /// Drops old lines of records that are gone, of so many at a time.
    fn forget(&mut self, keep: Duration, limit: u32, now: Timestamp) -> ReapStep {
        let is_old = |(at, _): &(Timestamp, History)| at.after(keep) <= now;
        let with_old = self
            .history
            .iter()
            .filter(|(id, lines)| !self.rows.contains_key(*id) && lines.first().is_some_and(is_old));
        let ids: Vec<RecordId> = with_old.map(|(id, _)| *id).take(limit as usize).collect();
        let mut removed = 0;
        for id in &ids {
            let Some(lines) = self.history.get_mut(id) else { continue };
            let before = lines.len();
            lines.retain(|line| !is_old(line));
            removed += (before - lines.len()) as u64;
            if lines.is_empty() {
                self.history.remove(id);
            }
        }
        let next = (ids.len() == limit as usize && removed > 0).then_some(CURSOR_START);
        ReapStep { removed, next, ..ReapStep::default() }
    }

    /// Takes a row out, and out of both orders.
    fn take(&mut self, id: &RecordId) -> Option<Row> {
        let row = self.rows.remove(id)?;
        if let Some(at) = row.record.due_at {
            self.due.remove(&(row.record.state, at, *id));
        }
        if let Some(at) = row.reap_at() {
            self.reap.remove(&(at, *id));
        }
        Some(row)
    }

    fn renew(&mut self, id: &RecordId, version: Version, now: Timestamp) -> RenewOutcome {
        let Some(row) = self.rows.get_mut(id) else { return RenewOutcome::Lost };
        let record = Arc::make_mut(&mut row.record);
        let Some(was) = record.due_at.filter(|_| record.version == version) else {
            return RenewOutcome::Lost;
        };
        let until = now.after(record.policy.lease);
        self.due.remove(&(record.state, was, *id));
        self.due.insert((record.state, until, *id));
        record.due_at = Some(until);
        RenewOutcome::Until(until)
    }

    fn bodies(&self, id: &RecordId, birth: Nonce) -> Vec<(u32, Bytes)> {
        let bodies = self.rows.get(id).into_iter().flat_map(|row| &row.bodies);
        let own = bodies.filter(|(_, (written, _))| *written == birth);
        own.map(|(kind, (_, data))| (*kind, data.clone())).collect()
    }

    fn stored(&self, id: &RecordId, now: Timestamp) -> Option<StoredRecord> {
        let row = self.rows.get(id)?;
        let kept = row.bodies.get(&BodyKind::Answer.code());
        // A body of an earlier generation answers another request.
        let answer = kept.filter(|(birth, _)| *birth == row.record.birth).map(|(_, data)| data.clone());
        Some(StoredRecord { record: row.record.clone(), answer, now })
    }
}

/// The least id and the greatest.
fn ids() -> (RecordId, RecordId) {
    (RecordId::from_bytes([0; RecordId::LEN]), RecordId::from_bytes([0xff; RecordId::LEN]))
}

const KIND: &str = "memory";
const EARLIEST: Timestamp = Timestamp::from_micros(i64::MIN);
