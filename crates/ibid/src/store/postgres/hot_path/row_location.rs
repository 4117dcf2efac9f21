//! Row locations: where this process put new records, so that a finish can go to its row without an index.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::mem;

use foldhash::fast::RandomState;
use ibid_core::change::{Change, Draft, Expect, InstantChange};
use ibid_core::record::{Nonce, State};
use ibid_core::scope::RecordId;
use parking_lot::Mutex;
use tokio_postgres::types::{FromSql, Type};

use super::super::row::SqlTypeError;

/// A row location (`ctid`): number of the page, and of the row in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Tid(pub(super) [u8; 6]);

impl Tid {
    /// Parses the form in which the server writes a location, `(12,3)`.
    pub(super) fn parse(text: &str) -> Option<Tid> {
        let (page, row) = text.strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
        let mut bytes = [0; 6];
        bytes[..4].copy_from_slice(&page.parse::<u32>().ok()?.to_be_bytes());
        bytes[4..].copy_from_slice(&row.parse::<u16>().ok()?.to_be_bytes());
        Some(Tid(bytes))
    }
}

impl FromSql<'_> for Tid {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Tid, SqlTypeError> {
        Ok(Tid(raw.try_into()?))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TID
    }
}

/// Locations of records that flights have begun, until they are finished. A record that is not here is found by its id.
#[derive(Debug, Default)]
pub(in super::super) struct RowLocations {
    known: Mutex<Generations>,
    hasher: RandomState,
}

/// The records begun last, and those before them. A record that is finished elsewhere, by a caller's transaction or another
/// process, is dropped with its generation. An entry takes 40 bytes, so both generations together stay below 10 MB.
#[derive(Debug, Default)]
struct Generations {
    current: HashMap<RecordId, Location, RandomState>,
    previous: HashMap<RecordId, Location, RandomState>,
}

#[derive(Clone, Copy, Debug)]
struct Location {
    tid: Tid,
    nonce: Nonce,
    /// Digest of the columns that a finish by location leaves alone.
    content: u64,
}

impl RowLocations {
    /// Remembers where a record was begun. `policy` is the number of its policy.
    pub(super) fn insert(&self, change: &Change, draft: &Draft, policy: i64, tid: Tid) {
        let location = Location { tid, nonce: change.nonce, content: self.content(draft, policy) };
        let mut known = self.known.lock();
        if known.current.len() >= GENERATION_MAX {
            known.previous = mem::take(&mut known.current);
        }
        known.current.insert(change.id, location);
    }

    /// Takes the location of the record that `change` finishes; `None` if it is not known, or if the change writes more than
    /// a finish by location does. `policy` returns the number of its policy.
    pub(in super::super) fn take(&self, change: &Change, policy: impl FnOnce(&Draft) -> i64) -> Option<Tid> {
        let (Expect::Version(was), Some(draft)) = (change.expect, &change.draft) else { return None };
        let location = {
            let mut known = self.known.lock();
            known.current.remove(&change.id).or_else(|| known.previous.remove(&change.id))?
        };
        let is_finish = (was.count, was.nonce) == (1, location.nonce)
            && is_finish(change, draft, location.nonce)
            && self.content(draft, policy(draft)) == location.content;
        is_finish.then_some(location.tid)
    }

    /// Digests the columns that are the same in a begin and its finish. A 64-bit digest is enough: the state machine never
    /// changes one of them in a finish.
    fn content(&self, draft: &Draft, policy: i64) -> u64 {
        let identity = &draft.identity;
        let names = (identity.tenant.as_str(), &*identity.operation.method, &*identity.operation.path);
        let fingerprint = draft.fingerprint.as_ref().map(|fingerprint| fingerprint.to_bytes());
        self.hasher.hash_one((policy, fingerprint, names, identity.key.as_str()))
    }
}

/// Returns whether `flight.sql` can begin the record: it is in a first lease like all others, and has nothing with it.
pub(in super::super) fn is_fresh(change: &Change) -> bool {
    let Some(draft) = &change.draft else { return false };
    change.expect == Expect::Absent
        && is_row_only(change)
        && change.response.is_none()
        && is_first_lease(draft)
        && [draft.birth, draft.owner] == [change.nonce; 2]
        && (draft.attempt, draft.point) == (1, 0)
        && draft.note.status.is_none()
        && [draft.created, draft.ran, draft.completed]
            == [InstantChange::Now, InstantChange::Now, InstantChange::Clear]
        && is_text(draft)
}

/// Returns whether the record is due when its first lease ends, with the reaper's instant as far behind as its policy says:
/// that is how the lease scan finds it.
fn is_first_lease(draft: &Draft) -> bool {
    draft.state == State::LEASED
        && draft.due_in == Some(draft.policy.lease)
        && (draft.expires_in, draft.purge_in) == (None, None)
}

/// Returns whether the change writes only what a finish of the first attempt `begun` writes, besides the columns of
/// [`RowLocations::content`].
fn is_finish(change: &Change, draft: &Draft, begun: Nonce) -> bool {
    is_row_only(change)
        && [draft.created, draft.ran, draft.completed] == [InstantChange::Keep, InstantChange::Keep, InstantChange::Now]
        && draft.due_in.is_none()
        // Not before the reaper's instant, which stays.
        && [draft.expires_in, draft.purge_in].iter().all(|end| end.is_some_and(|end| end >= draft.policy.retention))
        && [draft.birth, draft.owner] == [begun; 2]
        && (draft.attempt, draft.point) == (1, 0)
}

/// Returns whether the change writes nothing but the row and its response.
fn is_row_only(change: &Change) -> bool {
    !change.clears_bodies && change.bodies.is_empty() && change.history.is_empty() && change.uses.is_none()
}

/// Returns whether PostgreSQL can store the names: a text has no NUL. One bad row would fail a whole flight.
fn is_text(draft: &Draft) -> bool {
    let identity = &draft.identity;
    let names: [&str; 4] = [
        identity.tenant.as_str(),
        &identity.operation.method,
        &identity.operation.path,
        identity.key.as_str(),
    ];
    !names.iter().any(|name| name.as_bytes().contains(&0))
}

/// Locations in one generation: more than there are attempts in progress. With more, some are never finished here, and those
/// that are finished later are looked up by their id.
const GENERATION_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use ibid_core::change::{BodyKind, History, HistoryKind, Stamp, StoredBody};
    use ibid_core::policy::Policy;
    use ibid_core::record::Record;
    use ibid_core::time::Timestamp;
    use ibid_testkit::contract::{TestRecord, finish_with, fresh, fresh_under};

    use super::*;

    const LEASE: Duration = Duration::from_secs(60);
    const TID: Tid = Tid([0, 0, 0, 12, 0, 3]);

    fn record_of(begin: &Change) -> Arc<Record> {
        let stamp = Stamp { now: Timestamp::from_micros(1_800_000_000_000_000) };
        begin.apply(stamp, None).expect("a begin writes")
    }

    /// Returns whether a finish goes by the location of its begin. A policy is numbered by its lease here.
    fn flies(begin: &Change, finish: &Change) -> bool {
        let locations = RowLocations::default();
        let number = |draft: &Draft| i64::try_from(draft.policy.lease.as_secs()).expect("a lease");
        let draft = begin.draft.as_ref().expect("a begin writes");
        locations.insert(begin, draft, number(draft), TID);
        let taken = locations.take(finish, number);
        assert!(locations.take(finish, number).is_none(), "a location is used once");
        taken == Some(TID)
    }

    fn alter_change(mut change: Change, alter: fn(&mut Change, &mut Draft)) -> Change {
        let mut draft = change.draft.take().expect("it writes");
        alter(&mut change, &mut draft);
        change.draft = Some(draft);
        change
    }

    #[test]
    fn plain_begins_and_finishes_take_the_hot_path() {
        let forever = Arc::new(Policy::default().with(|policy| policy.retention = Duration::MAX));
        for begin in [fresh(&TestRecord::fresh(), LEASE), fresh_under(&TestRecord::fresh(), &forever)] {
            assert!(is_fresh(&begin), "{begin:?}");
            assert!(flies(&begin, &finish_with(&record_of(&begin), b"201")));
        }
    }

    #[test]
    fn a_begin_that_writes_anything_else_does_not_fly() {
        let others: [fn(&mut Change, &mut Draft); 13] = [
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
            |_, draft| draft.note.status = Some(201),
        ];
        for (index, alter) in others.iter().enumerate() {
            assert!(!is_fresh(&alter_change(fresh(&TestRecord::fresh(), LEASE), *alter)), "{index}");
        }
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
            |_, draft| draft.birth = Nonce(!draft.birth.0),
            |_, draft| draft.owner = Nonce(!draft.owner.0),
            |_, draft| draft.attempt = 2,
            |_, draft| draft.ran = InstantChange::Now,
            |_, draft| draft.fingerprint = None,
            |_, draft| {
                draft.policy = Arc::new(Policy::clone(&draft.policy).with(|policy| policy.lease = 3 * LEASE))
            },
            |_, draft| draft.point = 1,
        ];
        assert!(flies(&begin, &finish_with(&record_of(&begin), b"201")));
        for (index, alter) in others.iter().enumerate() {
            let finish = alter_change(finish_with(&record_of(&begin), b"201"), *alter);
            assert!(!flies(&begin, &finish), "{index}: {finish:?}");
        }
    }

    #[test]
    fn a_location_is_parsed_as_the_server_writes_it() {
        assert_eq!(Tid::parse("(12,3)"), Some(TID));
        for wrong in ["", "12,3", "(12)", "(12,x)", "(12,70000)"] {
            assert_eq!(Tid::parse(wrong), None, "{wrong}");
        }
    }
}
