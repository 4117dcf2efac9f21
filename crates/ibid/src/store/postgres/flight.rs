//! Changes as the rows that `flight.sql` takes: one array of fresh records and one of their finishes.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{BufMut, BytesMut};
use foldhash::fast::RandomState;
use ibid_core::change::{Change, Draft, Expect, InstantChange};
use ibid_core::record::{Nonce, Version};
use ibid_core::scope::RecordId;
use tokio_postgres::types::{FromSql, IsNull, Kind, ToSql, Type, to_sql_checked};

use super::columns::{INTERVAL_MAX, Numbers, bits, has_first_lease, micros};

/// Some Changes, in the order in which they are sent.
#[derive(Debug)]
pub(super) struct Flight<'a> {
    pub(super) begins: Vec<Begin<'a>>,
    pub(super) finishes: Vec<Finish<'a>>,
    /// Of the begins.
    pub(super) ids: Vec<&'a [u8]>,
}

/// One `ibid_fresh_row`.
#[derive(Debug)]
pub(super) struct Begin<'a> {
    change: &'a Change,
    draft: &'a Draft,
    policy: i64,
}

/// One `ibid_finish_row`.
#[derive(Debug)]
pub(super) struct Finish<'a> {
    change: &'a Change,
    draft: &'a Draft,
    was: Nonce,
    tid: Tid,
}

/// Where a row was put.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tid([u8; 6]);

/// Where this process put fresh records, and as what, until they are finished. What is not known here is found by its id.
#[derive(Debug, Default)]
pub(super) struct Tids {
    known: Mutex<Known>,
    /// How many batches of begins had better not fly.
    wary: AtomicU32,
}

/// Those begun last, and those before them. An Attempt that is finished elsewhere, by a caller's transaction or another process,
/// is forgotten in its turn.
#[derive(Debug, Default)]
struct Known {
    now: HashMap<RecordId, (Tid, Arc<Change>), RandomState>,
    before: HashMap<RecordId, (Tid, Arc<Change>), RandomState>,
}

impl Tids {
    /// Records were begun, and this is where.
    pub(super) fn put<'c>(&self, begun: impl Iterator<Item = (&'c Arc<Change>, Tid)>) {
        let mut known = self.lock();
        for (change, tid) in begun {
            if known.now.len() >= TIDS_MAX {
                known.before = mem::take(&mut known.now);
            }
            known.now.insert(change.id, (tid, change.clone()));
        }
    }

    /// Where the record of each of `changes` is, if a finish is all that it does. It is asked once.
    pub(super) fn take(&self, changes: &[Arc<Change>]) -> Vec<Option<Tid>> {
        let mut known = self.lock();
        let mut take = |change: &Arc<Change>| {
            let Expect::Version(was) = change.expect else { return None };
            let (tid, begun) = known.now.remove(&change.id).or_else(|| known.before.remove(&change.id))?;
            (begun.version() == was && is_finish(change, &begun)).then_some(tid)
        };
        changes.iter().map(&mut take).collect()
    }

    /// Another process began the same key at the same moment, and a flight failed for it. Where that happens it happens again:
    /// for a while begins go by the statement that passes over such a one.
    pub(super) fn met_a_rival(&self) {
        self.wary.store(WARY_BATCHES, Ordering::SeqCst);
    }

    /// Whether the begins of one more batch fly.
    pub(super) fn begins_fly(&self) -> bool {
        let one_less = |wary: u32| wary.checked_sub(1);
        self.wary.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_err()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing in here panics half-way through a change.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether `flight.sql` can begin the record: it has a first lease like all others, and nothing beside it.
pub(super) fn is_fresh(change: &Change) -> bool {
    let Some(draft) = &change.draft else { return false };
    change.expect == Expect::Absent
        && is_alone(change)
        && change.bodies.is_empty()
        && has_first_lease(draft)
        && [draft.birth, draft.owner] == [change.nonce; 2]
        && (draft.attempt, draft.point) == (1, 0)
        && [draft.created, draft.ran, draft.completed]
            == [InstantChange::Now, InstantChange::Now, InstantChange::Clear]
}

/// Whether `change` writes over what `begun` wrote only what a finish does, and keeps at most one thing.
fn is_finish(change: &Change, begun: &Change) -> bool {
    let (Some(draft), Some(before)) = (&change.draft, &begun.draft) else { return false };
    let sums = [draft.expires_in, draft.purge_in];
    is_alone(change)
        && change.bodies.len() <= 1
        && [draft.created, draft.ran, draft.completed] == [InstantChange::Keep, InstantChange::Keep, InstantChange::Now]
        && draft.due_in.is_none()
        // Not before the reaper's instant, which stays.
        && sums.iter().all(|sum| sum.is_some_and(|sum| sum >= draft.policy.retention && micros(sum) <= INTERVAL_MAX))
        && (draft.birth, draft.owner) == (before.birth, before.owner)
        && (draft.attempt, draft.point) == (before.attempt, before.point)
        // Both are ours: nobody learns anything from how long it takes.
        && draft.fingerprint.map(|one| one.to_bytes()) == before.fingerprint.map(|one| one.to_bytes())
        && draft.identity == before.identity
        && draft.policy == before.policy
}

/// Nothing told, nothing dropped, nothing used up.
fn is_alone(change: &Change) -> bool {
    !change.clears_bodies && change.history.is_empty() && change.uses.is_none()
}

impl<'a> Flight<'a> {
    /// `changes`, with the place of each row that is finished.
    pub(super) fn of(
        changes: impl Iterator<Item = (&'a Change, Option<Tid>)>,
        numbers: &Numbers,
    ) -> Flight<'a> {
        let (most, _) = changes.size_hint();
        let mut flight = Flight {
            begins: Vec::with_capacity(most),
            finishes: Vec::with_capacity(most),
            ids: Vec::with_capacity(most),
        };
        for (change, tid) in changes {
            let Some(draft) = &change.draft else { continue };
            match (change.expect, tid) {
                (Expect::Version(Version { nonce: was, .. }), Some(tid)) => {
                    flight.finishes.push(Finish { change, draft, was, tid });
                }
                _ => {
                    flight.ids.push(change.id.as_bytes());
                    flight.begins.push(Begin { change, draft, policy: numbers.of(&draft.policy) });
                }
            }
        }
        flight
    }
}

impl ToSql for Begin<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Wrong> {
        let Begin { change, draft, policy } = self;
        let mut row = Row::open(out, FRESH_FIELDS);
        row.bytes(change.id.as_bytes())?;
        row.int8(bits(change.nonce));
        row.int8(micros(draft.policy.lease));
        row.int8(micros(draft.policy.retention));
        row.int8(*policy);
        row.int2(draft.state.code().into());
        row.int2(draft.flags.bits().into());
        match &draft.fingerprint {
            Some(fingerprint) => row.bytes(&fingerprint.to_bytes())?,
            None => row.null(BYTEA),
        }
        row.text(draft.identity.tenant.as_str())?;
        row.text(&draft.identity.operation.method)?;
        row.text(&draft.identity.operation.path)?;
        row.text(draft.identity.key.as_str())?;
        row.bytes(&draft.note.to_bytes())?;
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        is_row(ty, "ibid_fresh_row")
    }

    to_sql_checked!();
}

impl ToSql for Finish<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Wrong> {
        let Finish { change, draft, was, tid } = self;
        let mut row = Row::open(out, FINISH_FIELDS);
        row.sized(TID, &tid.0)?;
        row.bytes(change.id.as_bytes())?;
        row.int8(bits(*was));
        row.int8(bits(change.nonce));
        row.int8(draft.expires_in.map_or(0, micros));
        row.int8(draft.purge_in.map_or(0, micros));
        row.int2(draft.state.code().into());
        row.int2(draft.flags.bits().into());
        row.bytes(&draft.note.to_bytes())?;
        match change.bodies.first() {
            Some(body) => {
                row.int4(body.kind.code().cast_signed());
                row.bytes(&body.data)?;
            }
            None => {
                row.null(INT4);
                row.null(BYTEA);
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        is_row(ty, "ibid_finish_row")
    }

    to_sql_checked!();
}

impl FromSql<'_> for Tid {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Tid, Wrong> {
        Ok(Tid(raw.try_into()?))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TID
    }
}

/// Writes one row of a composite type: each field with its type and its length.
struct Row<'o>(&'o mut BytesMut);

type Wrong = Box<dyn std::error::Error + Sync + Send>;

impl<'o> Row<'o> {
    fn open(out: &'o mut BytesMut, fields: i32) -> Row<'o> {
        out.put_i32(fields);
        Row(out)
    }

    fn bytes(&mut self, value: &[u8]) -> Result<(), Wrong> {
        self.sized(BYTEA, value)
    }

    fn text(&mut self, value: &str) -> Result<(), Wrong> {
        self.sized(TEXT, value.as_bytes())
    }

    fn sized(&mut self, ty: u32, value: &[u8]) -> Result<(), Wrong> {
        self.head(ty, i32::try_from(value.len())?);
        self.0.put_slice(value);
        Ok(())
    }

    fn int8(&mut self, value: i64) {
        self.head(INT8, 8);
        self.0.put_i64(value);
    }

    fn int4(&mut self, value: i32) {
        self.head(INT4, 4);
        self.0.put_i32(value);
    }

    fn int2(&mut self, value: i16) {
        self.head(INT2, 2);
        self.0.put_i16(value);
    }

    fn null(&mut self, ty: u32) {
        self.head(ty, -1);
    }

    /// Two numbers of four bytes, in one piece.
    fn head(&mut self, ty: u32, len: i32) {
        self.0.put_u64(u64::from(ty) << 32 | u64::from(len.cast_unsigned()));
    }
}

fn is_row(ty: &Type, name: &str) -> bool {
    matches!(ty.kind(), Kind::Composite(_)) && ty.name() == name
}

const FRESH_FIELDS: i32 = 13;
const FINISH_FIELDS: i32 = 11;

// What every server calls the types: the driver looks each of them up each time.
const BYTEA: u32 = 17;
const INT8: u32 = 20;
const INT2: u32 = 21;
const INT4: u32 = 23;
const TEXT: u32 = 25;
const TID: u32 = 27;

/// Tids that are remembered: more than there are attempts under way. Past this many some were never finished here, and
/// looking up ids again is the price.
const TIDS_MAX: usize = 1 << 16;

/// Batches of begins that do not fly after one has failed for a rival: each costs about twice a flight, a failure costs that once.
const WARY_BATCHES: u32 = 16;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ibid_core::change::{BodyKind, History, HistoryKind, Stamp, StoredBody};
    use ibid_core::policy::Policy;
    use ibid_core::record::{Record, State};
    use ibid_core::time::Timestamp;
    use ibid_testkit::contract::{TestRecord, finished, fresh, fresh_under};

    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    fn begun(begin: &Change) -> Arc<Record> {
        let stamp = Stamp { now: Timestamp::from_micros(1_800_000_000_000_000) };
        begin.applied(stamp, None).expect("a begin writes")
    }

    /// Whether a process that was told where `begin` was put flies `finish`.
    fn flies(begin: &Change, finish: &Change) -> bool {
        let tids = Tids::default();
        tids.put([(&Arc::new(begin.clone()), Tid([0; 6]))].into_iter());
        let finish = [Arc::new(finish.clone())];
        let flies = tids.take(&finish)[0].is_some();
        assert!(tids.take(&finish)[0].is_none(), "it is asked once");
        flies
    }

    #[test]
    fn a_plain_begin_and_its_finish_take_the_hot_path() {
        for policy in [Policy::default(), Policy::payments(), Policy::stripe(), Policy::one_transaction()] {
            let begin = fresh_under(&TestRecord::fresh(), &Arc::new(policy));
            assert!(is_fresh(&begin), "{begin:?}");
            let finish = finished(&begun(&begin), b"201");
            assert!(flies(&begin, &finish), "{finish:?}");
        }
    }

    #[test]
    fn a_begin_that_carries_anything_else_does_not_fly() {
        let others: [fn(&mut Change, &mut Draft); 12] = [
            |change, _| change.history.push(History { what: HistoryKind::Operator, detail: String::new() }),
            |change, _| change.bodies.push(StoredBody { kind: BodyKind::Request, data: Default::default() }),
            |change, _| change.clears_bodies = true,
            |change, _| change.expect = Expect::Version(change.version()),
            |_, draft| draft.due_in = Some(2 * LEASE),
            |_, draft| draft.state = State::Pending,
            |_, draft| draft.birth = Nonce(!draft.birth.0),
            |_, draft| draft.owner = Nonce(!draft.owner.0),
            |_, draft| draft.attempt = 2,
            |_, draft| draft.point = 1,
            |_, draft| draft.completed = InstantChange::Now,
            |_, draft| draft.purge_in = Some(LEASE),
        ];
        assert!(others.iter().all(|alter| !is_fresh(&altered(fresh(&TestRecord::fresh(), LEASE), *alter))));
    }

    #[test]
    fn a_finish_that_writes_anything_else_does_not_fly() {
        let begin = fresh(&TestRecord::fresh(), LEASE);
        let others: [fn(&mut Change, &mut Draft); 15] = [
            |change, _| change.history.push(History { what: HistoryKind::Operator, detail: String::new() }),
            |change, _| change.bodies.push(StoredBody { kind: BodyKind::Request, data: Default::default() }),
            |change, _| change.clears_bodies = true,
            |change, _| change.expect = Expect::Version(change.version()),
            |_, draft| draft.due_in = Some(LEASE),
            |_, draft| draft.expires_in = None,
            |_, draft| draft.expires_in = Some(draft.policy.retention / 2),
            |_, draft| draft.purge_in = Some(draft.policy.retention / 2),
            |_, draft| draft.purge_in = Some(Duration::MAX),
            |_, draft| draft.birth = Nonce(!draft.birth.0),
            |_, draft| draft.owner = Nonce(!draft.owner.0),
            |_, draft| draft.attempt = 2,
            |_, draft| draft.ran = InstantChange::Now,
            |_, draft| draft.fingerprint = None,
            |_, draft| draft.policy = Arc::new(Policy::payments()),
        ];
        assert!(flies(&begin, &finished(&begun(&begin), b"201")));
        for (place, alter) in others.iter().enumerate() {
            let finish = altered(finished(&begun(&begin), b"201"), *alter);
            assert!(!flies(&begin, &finish), "{place}: {finish:?}");
        }
    }

    #[test]
    fn after_a_rival_some_batches_of_begins_do_not_fly() {
        let tids = Tids::default();
        assert!(tids.begins_fly());
        tids.met_a_rival();
        assert!((0..WARY_BATCHES).all(|_| !tids.begins_fly()));
        assert!(tids.begins_fly());
    }

    #[test]
    fn the_types_are_called_as_the_driver_calls_them() {
        let types = [Type::BYTEA, Type::INT8, Type::INT2, Type::INT4, Type::TEXT, Type::TID];
        assert_eq!(types.map(|ty| ty.oid()), [BYTEA, INT8, INT2, INT4, TEXT, TID]);
    }

    fn altered(mut change: Change, alter: fn(&mut Change, &mut Draft)) -> Change {
        let mut draft = change.draft.take().expect("it writes");
        alter(&mut change, &mut draft);
        change.draft = Some(draft);
        change
    }
}
