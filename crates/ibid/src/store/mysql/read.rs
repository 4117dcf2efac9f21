//! Short verbs besides `commit`: load, due records, renewals, bodies and settings.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{LoadedBody, StoredRecord};
use ibid_core::record::{Nonce, State, Version};
use ibid_core::row::{UnreadableRowError, bits};
use ibid_core::scope::RecordId;
use ibid_core::sql::{Param, SqlError};
use ibid_core::store::{Cursor, Page, RenewOutcome, SetOutcome, StoreError};
use ibid_core::time::Timestamp;
use mysql_async::Error;

use super::connection::MysqlConnection;
use super::error::{self, MysqlErrorScope, store_error};
use super::row::{self, DbRow};
use super::row_source::RowSource;
use super::{KIND, MysqlCore, literal, policies};
use crate::store::record_pages::ListPosition;

impl MysqlCore {
    pub(super) async fn load(&self, id: RecordId) -> Result<Option<StoredRecord>, StoreError> {
        const OP: &str = "load";
        let mut connection = self.pools.short(OP).await?;
        let loaded = self.load_on(&mut connection, id).await.map_err(|error| store_error(OP, error))?;
        loaded.map_err(|reason| StoreError::lasting(KIND, OP, reason))
    }

    /// Loads one record as the connection sees it now.
    pub(super) async fn load_on(
        &self,
        connection: &mut MysqlConnection,
        id: RecordId,
    ) -> Result<Result<Option<StoredRecord>, UnreadableRowError>, Error> {
        let params = [Param::Bytes(id.as_bytes()), Param::maybe_i64(None)];
        // The statement has no other parameter.
        let text = literal::statement(LOAD, &params).unwrap_or_default();
        let rows = connection.run(&text).await?;
        let policies = policies::learn(&self.policies, connection, row::policies_of(&rows)).await?;
        Ok(rows.first().map(|row| row::read_stored(&policies, row)).transpose())
    }

    /// Returns one page of due records. The page may be shorter than `limit` and still have a next one, if some of its rows
    /// cannot be read.
    pub(super) async fn find_due(
        &self,
        state: State,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<StoredRecord>, StoreError> {
        const OP: &str = "find due records";
        let mut from = ListPosition::parse(KIND, OP, after.as_ref())?;
        for _ in 0..UNREADABLE_PAGES_MAX {
            // One too many tells that there is a next page.
            let params = [
                Param::I64(i64::from(state.code())),
                Param::I64(from.at),
                Param::Bytes(from.id.as_bytes()),
                Param::I64(i64::from(limit) + 1),
            ];
            let text = statement(OP, include_str!("sql/due.sql"), &params)?;
            let mut connection = self.pools.short(OP).await?;
            let failed = |error| store_error(OP, error);
            let rows = connection.run(&text).await.map_err(failed)?;
            let learnt = policies::learn(&self.policies, &mut connection, row::policies_of(&rows)).await;
            let policies = learnt.map_err(failed)?;
            let next = next_position(OP, &rows, limit)?;
            let page = Page { items: row::read_rows(OP, &policies, &rows, limit), next };
            match &page.next {
                // All of them are unreadable: they must not hide those behind them.
                Some(next) if page.items.is_empty() => from = ListPosition::parse(KIND, OP, Some(next))?,
                _ => return Ok(page),
            }
        }
        Ok(Page { items: Vec::new(), next: Some(from.cursor()) })
    }

    pub(super) async fn renew_leases(
        &self,
        leases: &[(RecordId, Version)],
    ) -> Result<Vec<RenewOutcome>, StoreError> {
        let mut outcomes = Vec::with_capacity(leases.len());
        for part in leases.chunks(RENEW_MAX) {
            let renewed: Result<_, StoreError> =
                retrying!(self, OP_RENEW, |connection| renew(connection, part));
            outcomes.extend(renewed?);
        }
        Ok(outcomes)
    }

    pub(super) async fn find_bodies(
        &self,
        id: RecordId,
        birth: Nonce,
    ) -> Result<Vec<LoadedBody>, StoreError> {
        const OP: &str = "read bodies";
        let params = [Param::Bytes(id.as_bytes()), Param::I64(bits(birth))];
        let rows = self.ask(OP, include_str!("sql/bodies.sql"), &params).await?;
        let body = |row: &DbRow| {
            let kind = row::number(OP, row, 0)?;
            Ok(LoadedBody { kind: u32::try_from(kind).unwrap_or(u32::MAX), data: row::bytes(OP, row, 1)? })
        };
        rows.iter().map(body).collect()
    }

    pub(super) async fn find_setting(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        const OP: &str = "read a setting";
        let rows = self.ask(OP, include_str!("sql/setting.sql"), &[Param::Text(name)]).await?;
        rows.first().map(|row| row::bytes(OP, row, 0)).transpose()
    }

    pub(super) async fn replace_setting(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> Result<SetOutcome, StoreError> {
        const OP: &str = "write a setting";
        let sql = match expected {
            None => include_str!("sql/setting_add.sql"),
            Some(_) => include_str!("sql/setting_set.sql"),
        };
        let params = [Param::Text(name), Param::Bytes(&value), Param::maybe_bytes(expected.as_deref())];
        let rows = self.ask(OP, sql, &params).await?;
        let stored = rows.first().map(|row| row::bytes(OP, row, 0)).transpose()?;
        Ok(SetOutcome::of(stored, &value))
    }

    /// Runs one short text. It must be safe to repeat, because after a deadlock it is.
    pub(super) async fn ask(
        &self,
        op: &'static str,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<DbRow>, StoreError> {
        let text = statement(op, sql, params)?;
        retrying!(self, op, |connection| connection.run(&text))
    }
}

/// Runs work on a connection for short statements, and again after a deadlock or a lock wait, both of which leave nothing
/// written. (A function would take an async closure, whose future is not known to be `Send`.)
macro_rules! retrying {
    ($core:expr, $op:expr, |$connection:ident| $work:expr) => {{
        let mut pooled = $core.pools.short($op).await?;
        let mut retries = $crate::store::mysql::read::Retries::default();
        loop {
            let $connection = &mut *pooled;
            match $work.await {
                Ok(done) => break Ok(done),
                Err(error) if retries.may_follow(&error).await => {}
                Err(error) => break Err($crate::store::mysql::error::store_error($op, error)),
            }
        }
    }};
}

pub(super) use retrying;

/// Repetitions of work that met locks.
#[derive(Debug, Default)]
pub(super) struct Retries(u32);

impl Retries {
    /// Waits for a moment and returns `true` if the work may be repeated.
    pub(super) async fn may_follow(&mut self, error: &Error) -> bool {
        self.0 += 1;
        let may_follow = self.0 < TRIES_MAX && error::scope_of(error) == MysqlErrorScope::Contended;
        if may_follow {
            tokio::time::sleep(PAUSE * self.0).await;
        }
        may_follow
    }
}

/// Renews leases in two round trips: locks the records that are free, then moves their due instants and commits. One would not
/// do, because MariaDB ignores `skip locked` in a derived table; a renewal has a sixth of a lease for all of them.
async fn renew(
    connection: &mut MysqlConnection,
    leases: &[(RecordId, Version)],
) -> Result<Vec<RenewOutcome>, Error> {
    let mut sorted = leases.to_vec();
    sorted.sort_unstable_by_key(|(id, version)| (*id, version.count, version.nonce.0));
    let mut source = RowSource::new(&["id", "count", "nonce"]);
    for (id, version) in &sorted {
        source.push(|text, column| match column {
            0 => literal::push_bytes(text, id.as_bytes()),
            1 => literal::push_i64(text, i64::from(version.count)),
            _ => literal::push_i64(text, bits(version.nonce)),
        });
    }
    let mut locked = connection.begin_with(&source.within(include_str!("sql/renew_lock.sql"))).await?;
    // A record whose policy is missing can't be renewed, and counts as busy.
    locked.retain(|row| row.get(3).and_then(row::integer).is_some());
    let mut free = RowSource::new(&["id", "lease_us"]);
    for row in &locked {
        if let (Some(id), Some(lease)) = (row::id_of(row), row.get(3).and_then(row::integer)) {
            free.push(|text, column| match column {
                0 => literal::push_bytes(text, id.as_bytes()),
                _ => literal::push_i64(text, lease),
            });
        }
    }
    let mut text = String::new();
    if !locked.is_empty() {
        text = free.within(include_str!("sql/renew_move.sql")) + ";\n";
    }
    text.extend([&source.within(include_str!("sql/renew_look.sql")), ";\ncommit"]);
    let due_rows = connection.end(&text).await?;
    let key = |row: &DbRow| {
        let version = (row.get(1).and_then(row::integer)?, row.get(2).and_then(row::integer)?);
        Some((row::id_of(row)?, version))
    };
    let locked: HashMap<_, _> = locked.iter().filter_map(|row| Some((key(row)?, ()))).collect();
    let due: HashMap<_, _> =
        due_rows.iter().filter_map(|row| Some((key(row)?, row.get(3).and_then(row::integer)))).collect();
    let outcome = |(id, version): &(RecordId, Version)| {
        let key = (*id, (i64::from(version.count), bits(version.nonce)));
        match (locked.contains_key(&key), due.get(&key)) {
            (true, Some(Some(until))) => RenewOutcome::Until(Timestamp::from_micros(*until)),
            (false, Some(_)) => RenewOutcome::Busy,
            _ => RenewOutcome::Lost,
        }
    };
    Ok(leases.iter().map(outcome).collect())
}

/// Returns a statement with its values.
pub(super) fn statement(
    op: &'static str,
    sql: &'static str,
    params: &[Param<'_>],
) -> Result<String, StoreError> {
    literal::statement(sql, params)
        .map_err(|error: SqlError| StoreError::lasting(KIND, op, error).unwritten())
}

/// Returns the position behind the first `limit` rows, if there are more. The column behind `now` is the position's instant.
pub(super) fn next_position(
    op: &'static str,
    rows: &[DbRow],
    limit: u32,
) -> Result<Option<Cursor>, StoreError> {
    let limit = limit as usize;
    let has_more = rows.len() > limit;
    let Some(last) = rows[..rows.len().min(limit)].last().filter(|_| has_more) else { return Ok(None) };
    let (id, at) = (row::id(op, last, 0)?, row::optional(op, last, row::NOW + 1)?);
    Ok(Some(ListPosition { at: at.unwrap_or(i64::MIN), id }.cursor()))
}

pub(super) const LOAD: &str = include_str!("../../record_sql/mysql/load.sql");

const OP_RENEW: &str = "renew";

/// Leases in one transaction: about 100 kB of text, and a few milliseconds for which the rows are locked.
const RENEW_MAX: usize = 500;

/// Tries of a short statement that meets locks. Each waits for a lock for a second at most.
const TRIES_MAX: u32 = 8;

/// First pause after a deadlock; each one is longer.
const PAUSE: Duration = Duration::from_millis(2);

/// Pages of unreadable records that are passed over at once; the next call continues behind them.
const UNREADABLE_PAGES_MAX: u32 = 100;
