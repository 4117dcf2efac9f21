//! The verbs that read, `renew`, and settings. `due` also looks through first leases (`walk.sql`).

use ibid_core::change::{History, HistoryKind, StoredRecord};
use ibid_core::fingerprint::SecretId;
use ibid_core::record::{Flags, State, Version};
use ibid_core::scope::RecordId;
use ibid_core::store::{
    PathPart, PathPattern, RecordCounts, RecordFilter, RenewOutcome, SetOutcome, StoreError,
};
use ibid_core::time::Timestamp;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Error, Row};

use bytes::Bytes;

use super::columns::bits;
use super::connect::{Connection, OPEN_HOT, Param};
use super::failure::store_error;
use super::row::{self, Unreadable};
use super::{KIND, PostgresStore};

impl PostgresStore {
    pub(super) async fn find(&self, ids: &[RecordId]) -> Result<Vec<StoredRecord>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut ids: Vec<&[u8]> = ids.iter().map(|id| &id.as_bytes()[..]).collect();
        ids.sort_unstable();
        ids.dedup();
        self.records("load", include_str!("sql/load.sql"), &[(&ids, Type::BYTEA_ARRAY)]).await
    }

    pub(super) async fn find_due(&self, state: State, limit: u32) -> Result<Vec<StoredRecord>, StoreError> {
        let code = i64::from(state.code());
        let params: [Param<'_>; 1] = [(&code, Type::INT8)];
        let find = || self.legible("find due records", include_str!("sql/due.sql"), &params, limit);
        let found = find().await?;
        // Only what runs has a first lease. As long as there is enough to do without those that ended, they may wait.
        if state != State::InProgress || found.len() >= limit as usize {
            return Ok(found);
        }
        let walked = self.walk().await;
        let found = find().await?;
        // What is known to be due is dealt with whatever keeps us from finding more.
        if found.is_empty() {
            walked?;
        }
        Ok(found)
    }

    /// Looks through the first leases that ended since this was last done, by whichever process. Should somebody else be at
    /// it, it is theirs.
    async fn walk(&self) -> Result<(), StoreError> {
        let mut failed = None;
        for row in self.ask_hot(OP_WALK, include_str!("sql/walks.sql"), &[]).await? {
            // One must not keep the others from being found.
            if let Err(error) = self.walk_under(get(OP_WALK, &row, 0)?, get(OP_WALK, &row, 1)?).await {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn walk_under(&self, policy: i64, ahead: i64) -> Result<(), StoreError> {
        let mut from: Option<i64> = None;
        for _ in 0..WALK_STEPS_MAX {
            let params: [Param<'_>; 6] = [
                (&from, Type::INT8),
                (&WALK_STEP, Type::INT8),
                (&GRACE_US, Type::INT8),
                (&ahead, Type::INT8),
                (&policy, Type::INT8),
                (&WALK_SPAN_US, Type::INT8),
            ];
            let rows = self.ask_hot(OP_WALK, include_str!("sql/walk.sql"), &params).await?;
            from = match rows.first() {
                Some(row) => get(OP_WALK, row, 0)?,
                None => None,
            };
            if from.is_none() {
                break;
            }
        }
        Ok(())
    }

    pub(super) async fn find_fitting(&self, filter: RecordFilter) -> Result<Vec<StoredRecord>, StoreError> {
        let all = (RecordId::from_bytes([0; RecordId::LEN]), RecordId::from_bytes([0xff; RecordId::LEN]));
        let (low, high) = filter.prefix.as_ref().map_or(all, |prefix| prefix.bounds());
        let (low, high): (&[u8], &[u8]) = (low.as_bytes(), high.as_bytes());
        // Nothing sorts before the empty string of bytes.
        let after = filter.after.as_ref().map_or(&[][..], |id| id.as_bytes());
        let state = filter.state.map(|state| i64::from(state.code()));
        let path = filter.path.as_ref().map(like);
        let slashes = filter.path.as_ref().and_then(PathPattern::slashes).map(i64::from);
        let dead = filter.dead_letter.then_some(i64::from(Flags::DEAD_LETTER));
        let from = filter.created_from.map(Timestamp::as_micros);
        let before = filter.created_before.map(Timestamp::as_micros);
        // An age beyond all time fits nothing, and the sum must not overflow in the server.
        let age = filter.older_than.map(|age| i64::try_from(age.as_micros()).unwrap_or(AGE_MAX).min(AGE_MAX));
        let params: [Param<'_>; 13] = [
            (&low, Type::BYTEA),
            (&high, Type::BYTEA),
            (&after, Type::BYTEA),
            (&state, Type::INT8),
            (&filter.tenant, Type::TEXT),
            (&filter.key, Type::TEXT),
            (&filter.method, Type::TEXT),
            (&path, Type::TEXT),
            (&slashes, Type::INT8),
            (&dead, Type::INT8),
            (&from, Type::INT8),
            (&before, Type::INT8),
            (&age, Type::INT8),
        ];
        self.legible("list", include_str!("sql/list.sql"), &params, filter.limit).await
    }

    /// The first `limit` of those that can be read; how many are asked for is the statement's last parameter. One that
    /// can't be read is told of and passed over: it must not hide those behind it.
    async fn legible(
        &self,
        op: &'static str,
        sql: &'static str,
        given: &[Param<'_>],
        limit: u32,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let limit = limit as usize;
        let mut most = limit;
        loop {
            let asked = i64::try_from(most).unwrap_or(i64::MAX);
            let params: Vec<Param<'_>> =
                given.iter().cloned().chain([(&asked as &(dyn ToSql + Sync), Type::INT8)]).collect();
            let connection = self.pools.any(op).await?;
            let [rows] =
                connection.hot(OPEN_HOT, [(sql, &params)]).await.map_err(|error| store_error(op, error))?;
            let learnt = self.policies.learn(&connection, row::policies_of(&rows)).await;
            learnt.map_err(|error| store_error(op, error))?;
            let (mut read, unread) = row::legible(&self.policies, &rows);
            let Some((record, why)) = unread.first() else { return Ok(read) };
            if read.len() >= limit || rows.len() < most || unread.len() > UNREADABLE_MAX {
                tracing::error!(op, count = unread.len(), %record, why = why.0, "records can't be read and are left out");
                read.truncate(limit);
                return Ok(read);
            }
            most = limit + 2 * unread.len();
        }
    }

    async fn records(
        &self,
        op: &'static str,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let connection = self.pools.any(op).await?;
        let [rows] =
            connection.hot(OPEN_HOT, [(sql, params)]).await.map_err(|error| store_error(op, error))?;
        self.read(op, &connection, &rows).await
    }

    async fn read(
        &self,
        op: &'static str,
        connection: &Connection,
        rows: &[Row],
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let learnt = self.policies.learn(connection, row::policies_of(rows)).await;
        learnt.map_err(|error| store_error(op, error))?;
        row::all(&self.policies, rows).map_err(|error| StoreError::lasting(KIND, op, error))
    }

    pub(super) async fn renew_all(
        &self,
        leases: &[(RecordId, Version)],
    ) -> Result<Vec<RenewOutcome>, StoreError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<&[u8]> = leases.iter().map(|(id, _)| &id.as_bytes()[..]).collect();
        let counts: Vec<i64> = leases.iter().map(|(_, version)| version.count.into()).collect();
        let nonces: Vec<i64> = leases.iter().map(|(_, version)| bits(version.nonce)).collect();
        let params: [Param<'_>; 3] =
            [(&ids, Type::BYTEA_ARRAY), (&counts, Type::INT8_ARRAY), (&nonces, Type::INT8_ARRAY)];
        let rows = self.ask_hot("renew", include_str!("sql/renew.sql"), &params).await?;
        let mut fates = vec![RenewOutcome::Lost; leases.len()];
        for row in rows {
            let place: i64 = get("renew", &row, 0)?;
            let until: Option<i64> = get("renew", &row, 1)?;
            // Places count from one, in the order in which they were sent.
            fates[place as usize - 1] = match (until, get("renew", &row, 2)?) {
                (Some(until), _) => RenewOutcome::Until(Timestamp::from_micros(until)),
                (None, true) => RenewOutcome::Busy,
                (None, false) => RenewOutcome::Lost,
            };
        }
        Ok(fates)
    }

    pub(super) async fn find_history(&self, id: RecordId) -> Result<Vec<(Timestamp, History)>, StoreError> {
        const OP: &str = "read the history";
        let id: &[u8] = id.as_bytes();
        let rows = self.ask(OP, include_str!("sql/history.sql"), &[(&id, Type::BYTEA)]).await?;
        let line = |row: &Row| {
            let code: i16 = get(OP, row, 1)?;
            let what = u8::try_from(code).ok().and_then(HistoryKind::from_code);
            let what = what.ok_or_else(|| StoreError::lasting(KIND, OP, Unreadable("an unknown event")))?;
            Ok((Timestamp::from_micros(get(OP, row, 0)?), History { what, detail: get(OP, row, 2)? }))
        };
        rows.iter().map(line).collect()
    }

    pub(super) async fn find_other_secret(
        &self,
        known: Vec<SecretId>,
    ) -> Result<Option<SecretId>, StoreError> {
        const OP: &str = "look for secrets";
        let known: Vec<Vec<u8>> = known.iter().map(|id| id.to_bytes().to_vec()).collect();
        let rows = self.ask(OP, include_str!("sql/other_secret.sql"), &[(&known, Type::BYTEA_ARRAY)]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let id: &[u8] = get(OP, row, 0)?;
        let id = id.try_into().map_err(|_| StoreError::lasting(KIND, OP, Unreadable("not a secret's id")))?;
        Ok(Some(SecretId::from_bytes(id)))
    }

    pub(super) async fn count_all(&self) -> Result<RecordCounts, StoreError> {
        const OP: &str = "count";
        let dead = i64::from(Flags::DEAD_LETTER);
        let rows = self.ask(OP, include_str!("sql/count.sql"), &[(&dead, Type::INT8)]).await?;
        let mut counts = RecordCounts::default();
        for row in &rows {
            let code: i16 = get(OP, row, 0)?;
            let place = State::ALL.iter().position(|state| i16::from(state.code()) == code);
            let place = place.ok_or_else(|| StoreError::lasting(KIND, OP, Unreadable("an unknown state")))?;
            counts.by_state[place] = get::<i64>(OP, row, 1)?.cast_unsigned();
            counts.dead_letters += get::<i64>(OP, row, 2)?.cast_unsigned();
            let at = |place| get::<i64>(OP, row, place).map(Timestamp::from_micros);
            counts.oldest[place] = Some(at(4)?.since(at(3)?));
        }
        let effects = self.ask(OP, include_str!("sql/count_effects.sql"), &[]).await?;
        if let Some(row) = effects.first() {
            counts.dead_effects = get::<i64>(OP, row, 0)?.cast_unsigned();
        }
        Ok(counts)
    }

    pub(super) async fn find_setting(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        const OP: &str = "read a setting";
        let rows = self.ask(OP, include_str!("sql/setting.sql"), &[(&name, Type::TEXT)]).await?;
        rows.first().map(|row| get(OP, row, 0).map(Bytes::copy_from_slice)).transpose()
    }

    pub(super) async fn replace_setting(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> Result<SetOutcome, StoreError> {
        const OP: &str = "write a setting";
        let new = &value[..];
        let written = match &expected {
            None => {
                let params: [Param<'_>; 2] = [(&name, Type::TEXT), (&new, Type::BYTEA)];
                self.ask(OP, include_str!("sql/setting_add.sql"), &params).await?
            }
            Some(old) => {
                let old = &old[..];
                let params: [Param<'_>; 3] = [(&name, Type::TEXT), (&old, Type::BYTEA), (&new, Type::BYTEA)];
                self.ask(OP, include_str!("sql/setting_set.sql"), &params).await?
            }
        };
        if written.is_empty() {
            return Ok(SetOutcome::of(self.find_setting(name).await?, &value));
        }
        Ok(SetOutcome::Won)
    }

    pub(super) async fn ask(
        &self,
        op: &'static str,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let connection = self.pools.any(op).await?;
        connection.query_once(sql, params).await.map_err(|error| store_error(op, error))
    }

    pub(super) async fn ask_hot(
        &self,
        op: &'static str,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let connection = self.pools.any(op).await?;
        let [rows] =
            connection.hot(OPEN_HOT, [(sql, params)]).await.map_err(|error| store_error(op, error))?;
        Ok(rows)
    }
}

/// The pattern as LIKE takes it.
fn like(pattern: &PathPattern) -> String {
    let mut like = String::new();
    for part in pattern.parts() {
        match part {
            PathPart::Some => like.push_str("_%"),
            PathPart::Text(text) => text.chars().for_each(|char| match char {
                '%' | '_' | '\\' => like.extend(['\\', char]),
                char => like.push(char),
            }),
        }
    }
    like
}

pub(super) fn get<'r, T: FromSql<'r>>(
    op: &'static str,
    row: &'r Row,
    column: usize,
) -> Result<T, StoreError> {
    row.try_get(column).map_err(|error: Error| StoreError::lasting(KIND, op, error))
}

/// Records that can't be read and are passed over at once. With more of them this is no ibid to work on that database.
const UNREADABLE_MAX: usize = 10_000;

/// A hundred years in microseconds: nothing is older.
const AGE_MAX: i64 = 100 * 366 * 86_400_000_000;

/// Records in one statement: some ten milliseconds.
const WALK_STEP: i64 = 5000;

/// An hour of first leases in one statement: what it passes over of other policies stays bounded.
const WALK_SPAN_US: i64 = 3_600_000_000;

/// Of one policy, a few seconds; after a long time without upkeep the next round goes on from there.
const WALK_STEPS_MAX: u32 = 200;

/// How long after the end of its lease a begin may still become visible and be found: a server whose disk hung for longer
/// than this and the lease is no use to its clients. What comes later is found by the next request, or by the reaper.
const GRACE_US: i64 = 10_000_000;

const OP_WALK: &str = "look through first leases";
