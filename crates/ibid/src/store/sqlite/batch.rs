//! Changes inside one open transaction. It compares versions and instants; what a State means is not its business.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::{Change, Commit, Draft, Expect, InstantChange, Stamp, StoredRecord};
use ibid_core::record::Version;
use ibid_core::time::Timestamp;
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::evidence;
use super::row::{self, Policies, bits};

/// One transaction's worth of Changes: statements prepared once, one instant for all.
pub(super) struct Batch<'c> {
    connection: &'c Connection,
    policies: &'c mut Policies,
    now: Timestamp,
    insert: CachedStatement<'c>,
    update: CachedStatement<'c>,
    put_body: CachedStatement<'c>,
    /// The note of the Change at hand, encoded; kept for its room.
    note: Vec<u8>,
}

impl<'c> Batch<'c> {
    pub(super) fn new(
        connection: &'c Connection,
        policies: &'c mut Policies,
        now: Timestamp,
    ) -> rusqlite::Result<Batch<'c>> {
        Ok(Batch {
            connection,
            policies,
            now,
            insert: connection.prepare_cached(include_str!("sql/commit_insert.sql"))?,
            update: connection.prepare_cached(include_str!("sql/commit_update.sql"))?,
            put_body: connection.prepare_cached(include_str!("sql/body_put.sql"))?,
            note: Vec::new(),
        })
    }

    /// Writes a Change, all of it, or finds what stands in its way. After an error the transaction must end.
    pub(super) fn apply(&mut self, change: &Change) -> rusqlite::Result<Commit> {
        let written = match (&change.draft, change.expect) {
            (Some(draft), Expect::Absent) => self.insert(change, draft)?,
            (Some(draft), Expect::Version(version)) => self.update(change, draft, version, None)?,
            (Some(draft), Expect::Due(version)) => self.update(change, draft, version, Some(self.now))?,
            (Some(_), Expect::Anything) => {
                let mistake = "a change of a record must say what it expects";
                return Err(rusqlite::Error::ToSqlConversionFailure(mistake.into()));
            }
            (None, expect) => self.may_tell(change, expect)?,
        };
        if !written {
            return Ok(Commit::Conflict(self.stored(change)?.map(Box::new)));
        }
        if let Some(draft) = &change.draft {
            self.put_bodies(change, draft)?;
        }
        if !change.history.is_empty() {
            self.tell(change)?;
        }
        if let Some(name) = &change.uses {
            evidence::mark_used(self.connection, name, self.now)?;
        }
        Ok(Commit::Done(Stamp { now: self.now }))
    }

    fn insert(&mut self, change: &Change, draft: &Draft) -> rusqlite::Result<bool> {
        let policy = self.policies.number(self.connection, &draft.policy)?;
        let version = change.version();
        let now = self.now.as_micros();
        let marked = |mark| (mark == InstantChange::Now).then_some(now);
        encode_note(draft, &mut self.note);
        let rows = self.insert.execute(params![
            change.id.as_bytes(),
            version.count,
            bits(version.nonce),
            bits(draft.birth),
            bits(draft.owner),
            draft.attempt,
            lease_us(draft),
            draft.state.code(),
            draft.flags.bits(),
            policy,
            draft.point,
            now,
            marked(draft.ran),
            marked(draft.completed),
            micros_after(self.now, draft.due_in),
            micros_after(self.now, draft.expires_in),
            micros_after(self.now, draft.purge_in),
            draft.fingerprint.as_ref().map(|fingerprint| fingerprint.to_bytes()),
            draft.identity.tenant.as_str(),
            &*draft.identity.operation.method,
            &*draft.identity.operation.path,
            draft.identity.key.as_str(),
            self.note,
        ])?;
        Ok(rows > 0)
    }

    fn update(
        &mut self,
        change: &Change,
        draft: &Draft,
        expected: Version,
        due_by: Option<Timestamp>,
    ) -> rusqlite::Result<bool> {
        let policy = self.policies.number(self.connection, &draft.policy)?;
        let version = change.version();
        encode_note(draft, &mut self.note);
        let rows = self.update.execute(params![
            change.id.as_bytes(),
            expected.count,
            bits(expected.nonce),
            due_by.map(Timestamp::as_micros),
            version.count,
            bits(version.nonce),
            bits(draft.birth),
            bits(draft.owner),
            draft.attempt,
            lease_us(draft),
            draft.state.code(),
            draft.flags.bits(),
            policy,
            draft.point,
            self.now.as_micros(),
            draft.created.code(),
            draft.ran.code(),
            draft.completed.code(),
            micros_after(self.now, draft.due_in),
            micros_after(self.now, draft.expires_in),
            micros_after(self.now, draft.purge_in),
            draft.fingerprint.as_ref().map(|fingerprint| fingerprint.to_bytes()),
            &*draft.identity.operation.method,
            &*draft.identity.operation.path,
            self.note,
            draft.identity.tenant.as_str(),
            draft.identity.key.as_str(),
        ])?;
        Ok(rows > 0)
    }

    /// Whether a Change without a draft meets what it expects. The write lock is ours, so it stays true.
    fn may_tell(&mut self, change: &Change, expect: Expect) -> rusqlite::Result<bool> {
        if expect == Expect::Anything {
            return Ok(true);
        }
        let record = self.stored(change)?.map(|stored| stored.record);
        Ok(match (expect, record) {
            (Expect::Version(version), Some(record)) => record.version == version,
            (Expect::Due(version), Some(record)) => record.version == version && record.is_due(self.now),
            (expect, record) => expect == Expect::Absent && record.is_none(),
        })
    }

    fn put_bodies(&mut self, change: &Change, draft: &Draft) -> rusqlite::Result<()> {
        if change.clears_bodies {
            let mut clear = self.connection.prepare_cached(include_str!("sql/body_clear.sql"))?;
            clear.execute([change.id.as_bytes()])?;
        }
        for body in &change.bodies {
            let kind = body.kind.code();
            self.put_body.execute(params![change.id.as_bytes(), kind, bits(draft.birth), &*body.data])?;
        }
        Ok(())
    }

    fn tell(&mut self, change: &Change) -> rusqlite::Result<()> {
        let mut add = self.connection.prepare_cached(include_str!("sql/event_add.sql"))?;
        for line in &change.history {
            add.execute(params![change.id.as_bytes(), self.now.as_micros(), line.what.code(), line.detail])?;
        }
        Ok(())
    }

    fn stored(&mut self, change: &Change) -> rusqlite::Result<Option<StoredRecord>> {
        let mut load = self.connection.prepare_cached(include_str!("sql/load.sql"))?;
        let found = load.query_row([change.id.as_bytes()], |row| {
            row::stored(self.connection, self.policies, row, self.now)
        });
        found.optional()
    }
}

/// Runs all but those that are `out`, in order; the first that fails is named by its place.
pub(super) fn run(
    connection: &Connection,
    policies: &mut Policies,
    now: Timestamp,
    changes: &[Arc<Change>],
    out: impl Fn(usize) -> bool,
) -> Result<Vec<Option<Commit>>, (usize, rusqlite::Error)> {
    let mut batch = Batch::new(connection, policies, now).map_err(|error| (0, error))?;
    let mut fates = Vec::with_capacity(changes.len());
    for (place, change) in changes.iter().enumerate() {
        let fate = if out(place) { None } else { Some(batch.apply(change).map_err(|error| (place, error))?) };
        fates.push(fate);
    }
    Ok(fates)
}

fn micros_after(now: Timestamp, interval: Option<Duration>) -> Option<i64> {
    interval.map(|interval| now.after(interval).as_micros())
}

fn encode_note(draft: &Draft, into: &mut Vec<u8>) {
    into.clear();
    // Writing into a Vec has no way to fail.
    minicbor::encode(&draft.note, into).expect("a Vec takes every byte");
}

fn lease_us(draft: &Draft) -> i64 {
    i64::try_from(draft.policy.lease.as_micros()).unwrap_or(i64::MAX)
}
