//! A store in the memory of this process, for tests, examples and a first try. Nothing outlives the process.
//!
//! One lock around everything makes each call one step, which is all that the contract asks. The store grows with its records;
//! `reap` is what shrinks it.

mod copy;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ibid_core::change::{Change, Commit, Expect, History, HistoryLine, LoadedBody, Stamp, StoredRecord};
use ibid_core::evidence::{EventName, Evidence, EvidenceQuery, EvidenceStore, StoredEvidence, USED_KEPT_FOR};
use ibid_core::fingerprint::SecretId;
use ibid_core::reap::{ReapCount, ReapStep, ReapTarget};
use ibid_core::record::{Nonce, RecordDetails, State, Version};
use ibid_core::scope::{Identity, RecordId};
use ibid_core::store::{
    BodyStore, BoxFuture, BrowseStore, CopyStore, Cursor, Durability, Page, RecordCounts, RecordFilter,
    RenewOutcome, RowCount, SetOutcome, Store, StoreClock, StoreError, StoreFacts,
};
use ibid_core::time::Timestamp;
use parking_lot::{Mutex, MutexGuard};

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
    tables: Mutex<Tables>,
}

impl MemoryStore {
    /// Makes an empty store that reads `clock`.
    pub fn new(clock: Clock) -> MemoryStore {
        MemoryStore { clock, tables: Mutex::default() }
    }

    /// Takes the lock and reads the time under it, so that instants are in the order of the writes.
    fn lock(&self) -> (MutexGuard<'_, Tables>, Timestamp) {
        let tables = self.tables.lock();
        let now = self.clock.now();
        (tables, now)
    }
}

impl Store for MemoryStore {
    fn facts(&self) -> StoreFacts {
        let reason = "it is lost with the process".to_owned();
        StoreFacts { name: NAME, clock: StoreClock::Shared, durability: Durability::Weak { reason } }
    }

    fn load(&self, id: RecordId) -> BoxFuture<'_, Result<Option<StoredRecord>, StoreError>> {
        let (tables, now) = self.lock();
        ready(Ok(tables.load_record(&id, now)))
    }

    fn commit(&self, change: Arc<Change>, _: Option<Instant>) -> BoxFuture<'_, Result<Commit, StoreError>> {
        let (mut tables, now) = self.lock();
        ready(tables.commit(&change, now))
    }

    fn renew(
        &self,
        leases: Vec<(RecordId, Version)>,
    ) -> BoxFuture<'_, Result<Vec<RenewOutcome>, StoreError>> {
        let (mut tables, now) = self.lock();
        ready(Ok(leases.iter().map(|(id, version)| tables.renew(id, *version, now)).collect()))
    }

    fn due(
        &self,
        state: State,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        let (tables, now) = self.lock();
        let from = match after.as_ref().and_then(parse_due_cursor) {
            Some((at, id)) => Bound::Excluded((state, at, id)),
            None => Bound::Included((state, EARLIEST, ID_RANGE.0)),
        };
        let longest_due_first = tables.due.range((from, Bound::Included((state, now, ID_RANGE.1))));
        let rows =
            longest_due_first.take(limit as usize + 1).filter_map(|(_, _, id)| tables.load_record(id, now));
        ready(Ok(Page::new(rows.collect(), limit, |last: &StoredRecord| due_cursor(last))))
    }

    fn reap(
        &self,
        target: ReapTarget,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<ReapStep, StoreError>> {
        let started = Instant::now();
        let (mut tables, now) = self.lock();
        let from = after.and_then(|cursor| cursor.as_i64()).map_or(EARLIEST, Timestamp::from_micros);
        let step = match target {
            ReapTarget::Records => tables.reap_records(from, limit, now),
            ReapTarget::History { keep } => tables.reap_history(keep, limit, now),
            // There is no outbox, a record holds its policy itself, and memory belongs to the allocator.
            ReapTarget::Effects { .. } | ReapTarget::Policies | ReapTarget::Room => ReapStep::default(),
        };
        ready(Ok(ReapStep { took: started.elapsed(), ..step }))
    }

    fn setting(&self, name: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        ready(Ok(self.lock().0.settings.get(name).cloned()))
    }

    fn compare_and_set(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> BoxFuture<'_, Result<SetOutcome, StoreError>> {
        let mut tables = self.lock().0;
        if tables.settings.get(name) == expected.as_ref() {
            tables.settings.insert(name.to_owned(), value);
            return ready(Ok(SetOutcome::Won));
        }
        ready(Ok(SetOutcome::of(tables.settings.get(name).cloned(), &value)))
    }

    fn bodies(&self) -> Option<&dyn BodyStore> {
        Some(self)
    }

    fn browse(&self) -> Option<&dyn BrowseStore> {
        Some(self)
    }

    fn evidence(&self) -> Option<&dyn EvidenceStore> {
        Some(self)
    }

    fn copy(&self) -> Option<&dyn CopyStore> {
        Some(self)
    }
}

impl BodyStore for MemoryStore {
    fn bodies(&self, id: RecordId, birth: Nonce) -> BoxFuture<'_, Result<Vec<LoadedBody>, StoreError>> {
        let tables = self.lock().0;
        let bodies = tables.rows.get(&id).into_iter().flat_map(|row| &row.bodies);
        let own = bodies.filter(|(_, (written_by, _))| *written_by == birth);
        let load =
            |(kind, (_, data)): (&u32, &(Nonce, Bytes))| LoadedBody { kind: *kind, data: data.clone() };
        ready(Ok(own.map(load).collect()))
    }
}

impl BrowseStore for MemoryStore {
    /// Lists in the order of ids.
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        let (tables, now) = self.lock();
        let (low, high) = filter.prefix.as_ref().map_or(ID_RANGE, |prefix| prefix.bounds());
        let after: Option<[u8; RecordId::LEN]> =
            filter.after.as_ref().and_then(|cursor| cursor.0.as_ref().try_into().ok());
        let from = match after.map(RecordId::from_bytes) {
            Some(after) if after >= low => Bound::Excluded(after),
            _ => Bound::Included(low),
        };
        let in_order = tables.rows.range((from, Bound::Unbounded)).take_while(|(id, _)| **id <= high);
        let matching = in_order.map(|(_, row)| &row.stored).filter(|stored| filter.fits(&stored.record, now));
        let rows =
            matching.take(filter.limit as usize + 1).map(|stored| StoredRecord { now, ..stored.clone() });
        let cursor = |last: &StoredRecord| Cursor(Bytes::copy_from_slice(last.record.id.as_bytes()));
        ready(Ok(Page::new(rows.collect(), filter.limit, cursor)))
    }

    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<HistoryLine>, StoreError>> {
        ready(Ok(self.lock().0.history.get(&id).cloned().unwrap_or_default()))
    }

    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>> {
        let (tables, now) = self.lock();
        let (mut by_state, mut dead_letters, mut oldest_unknown) = ([0; State::ALL.len()], 0, None);
        for record in tables.rows.values().map(|row| &row.stored.record) {
            by_state[usize::from(record.state.code()) - 1] += 1;
            dead_letters += u64::from(record.flags.dead_letter);
            if record.state == State::UNSETTLED {
                let since = now.since(record.ran_at.unwrap_or(record.created_at));
                oldest_unknown = oldest_unknown.max(Some(since));
            }
        }
        ready(Ok(RecordCounts {
            by_state: by_state.map(RowCount::Exact),
            dead_letters: RowCount::Exact(dead_letters),
            dead_effects: RowCount::Exact(0),
            oldest_unknown,
        }))
    }

    fn count_reapable(&self, target: ReapTarget) -> BoxFuture<'_, Result<ReapCount, StoreError>> {
        let (tables, now) = self.lock();
        let mut count = ReapCount::default();
        match target {
            ReapTarget::Records => {
                for (_, id) in tables.reap.range(..=(now, ID_RANGE.1)) {
                    let goes = tables.rows.get(id).is_some_and(|row| row.stored.record.is_purgeable(now));
                    *(if goes { &mut count.remove } else { &mut count.strip }) += 1;
                }
            }
            ReapTarget::History { keep } => {
                let orphans = tables.history.iter().filter(|(id, _)| !tables.rows.contains_key(id));
                let old = orphans.flat_map(|(_, lines)| lines).filter(|line| line.at.after(keep) <= now);
                count.remove = old.count() as u64;
            }
            ReapTarget::Effects { .. } | ReapTarget::Policies | ReapTarget::Room => {}
        }
        ready(Ok(count))
    }

    fn find_unknown_secret(
        &self,
        known: Vec<SecretId>,
    ) -> BoxFuture<'_, Result<Option<SecretId>, StoreError>> {
        let tables = self.lock().0;
        let rows = tables.rows.values().filter(|row| !row.is_tombstone);
        let mut secrets = rows.filter_map(|row| Some(row.stored.record.fingerprint?.secret()));
        ready(Ok(secrets.find(|secret| !known.contains(secret))))
    }
}

impl EvidenceStore for MemoryStore {
    fn insert_evidence(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> BoxFuture<'_, Result<(StoredEvidence, bool), StoreError>> {
        let (mut tables, now) = self.lock();
        let known = tables.evidence.values().find(|(known, _)| known.evidence.name == evidence.name);
        if let Some((known, _)) = known {
            return ready(Ok((known.clone(), false)));
        }
        let as_of = now.before(evidence.age);
        let evidence = Evidence { age: Duration::ZERO, ..evidence };
        let stored = StoredEvidence { evidence, as_of, open: true };
        let seq = tables.evidence.last_key_value().map_or(1, |(last, _)| last + 1);
        tables.evidence.insert(seq, (stored.clone(), now.after(keep_for)));
        ready(Ok((stored, true)))
    }

    fn open_evidence(
        &self,
        which: EvidenceQuery,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredEvidence>, StoreError>> {
        let tables = self.lock().0;
        let after = after.and_then(|cursor| cursor.as_i64()).unwrap_or(0);
        let later = tables.evidence.range((Bound::Excluded(after), Bound::Unbounded));
        let open = later.filter(|(_, (stored, _))| stored.open);
        let fits = open.filter(|(_, (stored, _))| match which {
            EvidenceQuery::Of(id) => stored.evidence.about.id() == id,
            EvidenceQuery::All => true,
        });
        let rows: Vec<_> =
            fits.take(limit as usize + 1).map(|(seq, (stored, _))| (*seq, stored.clone())).collect();
        let Page { items, next } = Page::new(rows, limit, |(seq, _)| Cursor::of_i64(*seq));
        ready(Ok(Page { items: items.into_iter().map(|(_, stored)| stored).collect(), next }))
    }

    fn dismiss_evidence(&self, names: Vec<EventName>) -> BoxFuture<'_, Result<(), StoreError>> {
        let mut tables = self.lock().0;
        let named = tables.evidence.values_mut().filter(|(stored, _)| names.contains(&stored.evidence.name));
        named.for_each(|(stored, _)| stored.open = false);
        ready(Ok(()))
    }

    fn purge_evidence(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        let (mut tables, now) = self.lock();
        let mut purged = 0;
        tables.evidence.retain(|_, (_, purge_at)| {
            let goes = *purge_at <= now && purged < u64::from(limit);
            purged += u64::from(goes);
            !goes
        });
        ready(Ok(purged))
    }
}

/// All rows, and the two orders in which upkeep asks for them.
#[derive(Debug, Default)]
struct Tables {
    rows: BTreeMap<RecordId, Row>,
    /// Invariant: exactly the rows with a due instant.
    due: BTreeSet<(State, Timestamp, RecordId)>,
    /// Invariant: exactly the rows that will be removed, by the next instant at which the reaper has something to do.
    reap: BTreeSet<(Timestamp, RecordId)>,
    /// Outlives the records, as an audit does.
    history: HashMap<RecordId, Vec<HistoryLine>>,
    settings: HashMap<String, Bytes>,
    /// By sequence number, each with the instant at which it is purged.
    evidence: BTreeMap<i64, (StoredEvidence, Timestamp)>,
}

#[derive(Debug)]
struct Row {
    /// The record and its response; `now` is the instant of the last write.
    stored: StoredRecord,
    is_tombstone: bool,
    /// By the code of its kind, each with the generation that wrote it.
    bodies: HashMap<u32, (Nonce, Bytes)>,
}

impl Row {
    /// Returns the next instant at which the reaper strips or removes the row. A dead letter has none.
    fn reap_at(&self) -> Option<Timestamp> {
        let record = &self.stored.record;
        if record.flags.dead_letter {
            return None;
        }
        let purge_at = record.purge_at?;
        let strip_at = record.expires_at.filter(|_| !self.is_tombstone);
        Some(strip_at.map_or(purge_at, |at| at.min(purge_at)))
    }
}

impl Tables {
    fn commit(&mut self, change: &Change, now: Timestamp) -> Result<Commit, StoreError> {
        if change.draft.is_some() && change.expect == Expect::Anything {
            let why = "a change of a record must say what it expects";
            return Err(StoreError::lasting(NAME, "commit", why).unwritten());
        }
        let before = self.load_record(&change.id, now);
        let is_met = match (change.expect, before.as_ref().map(|stored| &stored.record)) {
            (Expect::Anything, _) | (Expect::Absent, None) => true,
            (Expect::Version(version), Some(record)) => record.version == version,
            (Expect::Due(version), Some(record)) => record.version == version && record.is_due(now),
            (Expect::Absent, Some(_)) | (Expect::Version(_) | Expect::Due(_), None) => false,
        };
        if !is_met {
            return Ok(Commit::Conflict(before.map(Box::new)));
        }
        let stamp = Stamp { now };
        if let Some(stored) = change.stored_after(stamp, before.as_ref()) {
            self.replace(change, stored);
        }
        if let Some(name) = &change.uses {
            let used = self.evidence.values_mut().find(|(stored, _)| stored.evidence.name == *name);
            if let Some((stored, purge_at)) = used {
                (stored.open, *purge_at) = (false, now.after(USED_KEPT_FOR));
            }
        }
        if !change.history.is_empty() {
            let line = |line: &History| HistoryLine { at: now, what: line.what, detail: line.detail.clone() };
            let lines = change.history.iter().map(line);
            self.history.entry(change.id).or_default().extend(lines);
        }
        Ok(Commit::Done(stamp))
    }

    fn replace(&mut self, change: &Change, stored: StoredRecord) {
        let mut bodies = self.take(&change.id).map(|row| row.bodies).unwrap_or_default();
        if change.clears_bodies {
            bodies.clear();
        }
        for body in &change.bodies {
            bodies.insert(body.kind.code(), (stored.record.birth, body.data.clone()));
        }
        self.insert(Row { stored, is_tombstone: false, bodies });
    }

    /// Adds a row, and enters it into both orders.
    fn insert(&mut self, row: Row) {
        let record = &row.stored.record;
        self.due.extend(record.due_at.map(|at| (record.state, at, record.id)));
        self.reap.extend(row.reap_at().map(|at| (at, record.id)));
        self.rows.insert(record.id, row);
    }

    /// Takes a row out, and out of both orders.
    fn take(&mut self, id: &RecordId) -> Option<Row> {
        let row = self.rows.remove(id)?;
        if let Some(at) = row.stored.record.due_at {
            self.due.remove(&(row.stored.record.state, at, *id));
        }
        if let Some(at) = row.reap_at() {
            self.reap.remove(&(at, *id));
        }
        Some(row)
    }

    /// Removes records that are past their purge instant, and strips those that are only expired.
    fn reap_records(&mut self, from: Timestamp, limit: u32, now: Timestamp) -> ReapStep {
        let oldest_first = self.reap.range((from, ID_RANGE.0)..=(now, ID_RANGE.1)).take(limit as usize);
        let ripe: Vec<(Timestamp, RecordId)> = oldest_first.copied().collect();
        let mut step = ReapStep { behind: ripe.first().map(|(at, _)| now.since(*at)), ..ReapStep::default() };
        for (_, id) in &ripe {
            // Every row of the order exists.
            let Some(mut row) = self.take(id) else { continue };
            if row.stored.record.is_purgeable(now) {
                step.removed += 1;
                continue;
            }
            // Stripping is a write like any other: a writer that read the row before loses.
            let record = Arc::make_mut(&mut row.stored.record);
            record.version.count += 1;
            record.identity = Arc::new(Identity::forgotten());
            record.note = RecordDetails::default();
            row.stored.response = None;
            row.bodies.clear();
            row.is_tombstone = true;
            self.insert(row);
            step.stripped += 1;
        }
        if limit > 0 && ripe.len() == limit as usize {
            step.next = ripe.last().map(|(at, _)| Cursor::of_i64(at.as_micros()));
        }
        step
    }

    /// Removes old lines of records that are gone, of up to `limit` records.
    fn reap_history(&mut self, keep: Duration, limit: u32, now: Timestamp) -> ReapStep {
        let is_old = |line: &HistoryLine| line.at.after(keep) <= now;
        let orphans = self.history.iter().filter(|(id, _)| !self.rows.contains_key(*id));
        let with_old = orphans.filter(|(_, lines)| lines.first().is_some_and(is_old));
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
        // Removed rows are gone, so each step begins at the start.
        let next = (ids.len() == limit as usize && removed > 0).then(|| Cursor::of_i64(0));
        ReapStep { removed, next, ..ReapStep::default() }
    }

    fn renew(&mut self, id: &RecordId, version: Version, now: Timestamp) -> RenewOutcome {
        let Some(row) = self.rows.get_mut(id) else { return RenewOutcome::Lost };
        let record = Arc::make_mut(&mut row.stored.record);
        let Some(was) = record.due_at.filter(|_| record.version == version) else {
            return RenewOutcome::Lost;
        };
        let until = now.after(record.policy.lease);
        self.due.remove(&(record.state, was, *id));
        self.due.insert((record.state, until, *id));
        record.due_at = Some(until);
        RenewOutcome::Until(until)
    }

    fn load_record(&self, id: &RecordId, now: Timestamp) -> Option<StoredRecord> {
        Some(StoredRecord { now, ..self.rows.get(id)?.stored.clone() })
    }
}

/// Returns a future that is done: no verb of this store waits.
fn ready<'a, T: Send + 'a>(result: Result<T, StoreError>) -> BoxFuture<'a, Result<T, StoreError>> {
    Box::pin(std::future::ready(result))
}

fn due_cursor(last: &StoredRecord) -> Cursor {
    let at = last.record.due_at.map_or(0, Timestamp::as_micros);
    Cursor([&at.to_be_bytes()[..], last.record.id.as_bytes()].concat().into())
}

fn parse_due_cursor(cursor: &Cursor) -> Option<(Timestamp, RecordId)> {
    let (at, id) = cursor.0.split_first_chunk::<8>()?;
    Some((Timestamp::from_micros(i64::from_be_bytes(*at)), RecordId::from_bytes(id.try_into().ok()?)))
}

/// The least id and the greatest.
const ID_RANGE: (RecordId, RecordId) =
    (RecordId::from_bytes([0; RecordId::LEN]), RecordId::from_bytes([0xff; RecordId::LEN]));

const NAME: &str = "memory";
const EARLIEST: Timestamp = Timestamp::from_micros(i64::MIN);
