//! Short verbs besides `commit`: load, due records, renewals, bodies and settings.

use bytes::Bytes;
use ibid_core::change::{LoadedBody, StoredRecord};
use ibid_core::record::{Nonce, State, Version};
use ibid_core::row::{UnreadableRowError, bits};
use ibid_core::scope::RecordId;
use ibid_core::store::{Cursor, Page, RenewOutcome, SetOutcome, SqlStore, StoreError};
use ibid_core::time::Timestamp;
use tokio_postgres::types::{FromSql, Type};
use tokio_postgres::{Error, Row};

use super::connection::{OPEN_HOT, Param, PostgresConnection};
use super::error::store_error;
use super::row::{self, SqlId};
use super::{KIND, PostgresCore, policies};
use crate::store::record_pages::ListPosition;

impl PostgresCore {
    pub(super) async fn load(&self, id: RecordId) -> Result<Option<StoredRecord>, StoreError> {
        const OP: &str = "load";
        let connection = self.pools.short(OP).await?;
        let loaded = self.load_on(&connection, id).await.map_err(|error| store_error(OP, error))?;
        loaded.map_err(|reason| StoreError::lasting(KIND, OP, reason))
    }

    /// Loads one record in its own transaction.
    pub(super) async fn load_on(
        &self,
        connection: &PostgresConnection,
        id: RecordId,
    ) -> Result<Result<Option<StoredRecord>, UnreadableRowError>, Error> {
        let id = &id.as_bytes()[..];
        let [rows] = connection.transaction(OPEN_HOT, [(LOAD, &[(&id, Type::BYTEA), NO_INSTANT])]).await?;
        self.read_one(connection, &rows).await
    }

    /// Loads one record in the transaction that is open.
    pub(super) async fn load_within(
        &self,
        connection: &PostgresConnection,
        id: RecordId,
    ) -> Result<Result<Option<StoredRecord>, UnreadableRowError>, Error> {
        let id = &id.as_bytes()[..];
        let rows = connection.query_once(LOAD, &[(&id, Type::BYTEA), NO_INSTANT]).await?;
        self.read_one(connection, &rows).await
    }

    async fn read_one(
        &self,
        connection: &PostgresConnection,
        rows: &[Row],
    ) -> Result<Result<Option<StoredRecord>, UnreadableRowError>, Error> {
        let policies = policies::learn(&self.policies, connection, row::policies_of(rows)).await?;
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
        let page = self.due_page(state, after.clone(), limit).await?;
        // Only records in progress have a first lease. While there is enough to do without those that ended, they may wait.
        if state != State::LEASED || page.next.is_some() {
            return Ok(page);
        }
        let scanned = self.scan_leases().await;
        let page = self.due_page(state, after, limit).await?;
        // Known due records are returned whatever keeps the scan from finding more.
        if page.items.is_empty() {
            scanned?;
        }
        Ok(page)
    }

    async fn due_page(
        &self,
        state: State,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<StoredRecord>, StoreError> {
        const OP: &str = "find due records";
        // One too many tells that there is a next page.
        let (code, most) = (i64::from(state.code()), i64::from(limit) + 1);
        let mut from = ListPosition::parse(KIND, OP, after.as_ref())?;
        for _ in 0..UNREADABLE_PAGES_MAX {
            let (at, id) = (from.at, SqlId(from.id));
            let params: [Param<'_>; 4] =
                [(&code, Type::INT8), (&at, Type::INT8), (&id, Type::UUID), (&most, Type::INT8)];
            let connection = self.pools.short(OP).await?;
            let failed = |error| store_error(OP, error);
            let [rows] = connection.transaction(OPEN_HOT, [(DUE, &params)]).await.map_err(failed)?;
            let learnt = policies::learn(&self.policies, &connection, row::policies_of(&rows)).await;
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
        const OP: &str = "renew";
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<SqlId> = leases.iter().map(|(id, _)| SqlId(*id)).collect();
        let counts: Vec<i32> = leases.iter().map(|(_, version)| version.count.cast_signed()).collect();
        let nonces: Vec<i64> = leases.iter().map(|(_, version)| bits(version.nonce)).collect();
        let params: [Param<'_>; 3] =
            [(&ids, Type::UUID_ARRAY), (&counts, Type::INT4_ARRAY), (&nonces, Type::INT8_ARRAY)];
        let mut outcomes = vec![RenewOutcome::Lost; leases.len()];
        for row in self.ask(OP, include_str!("sql/renew.sql"), &params).await? {
            let nth: i64 = get(OP, &row, 0)?;
            let (until, is_ours): (Option<i64>, bool) = (get(OP, &row, 1)?, get(OP, &row, 2)?);
            // The statement counts from one, in the order in which the leases were sent.
            let outcome = usize::try_from(nth - 1).ok().and_then(|nth| outcomes.get_mut(nth));
            if let Some(outcome) = outcome {
                *outcome = match until {
                    Some(until) => RenewOutcome::Until(Timestamp::from_micros(until)),
                    None if is_ours => RenewOutcome::Busy,
                    None => RenewOutcome::Lost,
                };
            }
        }
        Ok(outcomes)
    }

    pub(super) async fn find_bodies(
        &self,
        id: RecordId,
        birth: Nonce,
    ) -> Result<Vec<LoadedBody>, StoreError> {
        const OP: &str = "read bodies";
        let birth = bits(birth);
        let params: [Param<'_>; 2] = [(&SqlId(id), Type::UUID), (&birth, Type::INT8)];
        let rows = self.ask(OP, include_str!("sql/bodies.sql"), &params).await?;
        let body = |row: &Row| {
            let kind: i32 = get(OP, row, 0)?;
            let data = Bytes::copy_from_slice(get(OP, row, 1)?);
            Ok(LoadedBody { kind: kind.cast_unsigned(), data })
        };
        rows.iter().map(body).collect()
    }

    pub(super) async fn find_setting(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        const OP: &str = "read a setting";
        let rows = self.ask(OP, include_str!("sql/setting.sql"), &[(&name, Type::TEXT)]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        self.check_schema(OP, get(OP, row, 1)?)?;
        Ok(get::<Option<&[u8]>>(OP, row, 0)?.map(Bytes::copy_from_slice))
    }

    pub(super) async fn replace_setting(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> Result<SetOutcome, StoreError> {
        const OP: &str = "write a setting";
        let (new, lasts) = (&value[..], self.must_be_durable());
        let written = match &expected {
            None => {
                let params: [Param<'_>; 3] = [(&name, Type::TEXT), (&new, Type::BYTEA), (&lasts, Type::BOOL)];
                self.ask(OP, include_str!("sql/setting_add.sql"), &params).await?
            }
            Some(old) => {
                let old = &old[..];
                let params: [Param<'_>; 4] =
                    [(&name, Type::TEXT), (&old, Type::BYTEA), (&new, Type::BYTEA), (&lasts, Type::BOOL)];
                self.ask(OP, include_str!("sql/setting_set.sql"), &params).await?
            }
        };
        let Some(row) = written.first() else {
            return Ok(SetOutcome::of(self.find_setting(name).await?, &value));
        };
        self.check_schema(OP, get(OP, row, 0)?)?;
        Ok(SetOutcome::Won)
    }

    /// Stops this store if a migration has taken a step that excludes this program. A process reads settings every few seconds as
    /// long as it runs, so one that was started before the step notices it.
    fn check_schema(&self, op: &'static str, needs: Option<i32>) -> Result<(), StoreError> {
        let Some(needs) = needs.map(i32::cast_unsigned) else { return Ok(()) };
        match self.target.exclude_if_needed(needs) {
            None => Ok(()),
            Some(error) => Err(StoreError::lasting(KIND, op, error)),
        }
    }

    /// Runs one short statement in a transaction with the settings of the hot path: it waits for a lock only briefly, so it
    /// never keeps a connection for long.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the statement runs to its end, and the pool closes the connection.
    pub(super) async fn ask(
        &self,
        op: &'static str,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let connection = self.pools.short(op).await?;
        let [rows] = connection
            .transaction(OPEN_HOT, [(sql, params)])
            .await
            .map_err(|error| store_error(op, error))?;
        Ok(rows)
    }
}

/// Returns the position behind the first `limit` rows, if there are more. The column behind `now` is the position's instant.
pub(super) fn next_position(
    op: &'static str,
    rows: &[Row],
    limit: u32,
) -> Result<Option<Cursor>, StoreError> {
    let limit = limit as usize;
    let has_more = rows.len() > limit;
    let Some(last) = rows[..rows.len().min(limit)].last().filter(|_| has_more) else { return Ok(None) };
    let SqlId(id) = get(op, last, 0)?;
    Ok(Some(ListPosition { at: get(op, last, row::NOW + 1)?, id }.cursor()))
}

/// Returns the server's time.
pub(super) async fn now(connection: &PostgresConnection) -> Result<Timestamp, Error> {
    let rows = connection.query_once(include_str!("sql/now.sql"), &[]).await?;
    // The query has no source of rows, so it returns exactly one.
    rows.first().expect("one row").try_get(0).map(Timestamp::from_micros)
}

/// Reads one column of a row.
pub(super) fn get<'r, T: FromSql<'r>>(
    op: &'static str,
    row: &'r Row,
    column: usize,
) -> Result<T, StoreError> {
    row.try_get(column).map_err(|error: Error| StoreError::lasting(KIND, op, error))
}

const LOAD: &str = include_str!("../../record_sql/postgres/load.sql");

/// The server's own clock.
const NO_INSTANT: Param<'static> = (&None::<i64>, Type::INT8);
const DUE: &str = include_str!("sql/due.sql");

/// Pages of unreadable records that are passed over at once; the next call continues behind them.
const UNREADABLE_PAGES_MAX: u32 = 100;
