//! Threads that read, each on its own connection that cannot write.
//!
//! Replays and upkeep have four threads. Questions of operators have another one, so that a slow list never delays a replay.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use ibid_core::change::{LoadedBody, StoredRecord};
use ibid_core::record::{Nonce, State};
use ibid_core::row::bits;
use ibid_core::scope::RecordId;
use ibid_core::store::{Cursor, Page, StoreError};
use ibid_core::time::Timestamp;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::error::{spoils_connection, store_error};
use super::policies::Policies;
use super::queue::QueueError;
use super::{StoreFile, open, row};

/// A question. It sends its own answer.
pub(super) type Question = Box<dyn FnOnce(&mut Reader) + Send>;

/// Questions that wait for a thread.
pub(super) struct Questions {
    waiting: Mutex<QuestionQueue>,
    filled: Condvar,
}

#[derive(Default)]
struct QuestionQueue {
    questions: VecDeque<Question>,
    is_closed: bool,
}

impl Questions {
    pub(super) fn new() -> Arc<Questions> {
        Arc::new(Questions { waiting: Mutex::default(), filled: Condvar::new() })
    }

    /// Adds a question, or refuses it at once.
    pub(super) fn push(&self, question: Question) -> Result<(), QueueError> {
        let mut waiting = self.lock();
        if waiting.is_closed {
            return Err(QueueError::Closed);
        }
        if waiting.questions.len() >= QUESTIONS_MAX {
            return Err(QueueError::Full);
        }
        waiting.questions.push_back(question);
        drop(waiting);
        self.filled.notify_one();
        Ok(())
    }

    /// Waits for a question; `None` once the queue is closed and empty.
    fn take(&self) -> Option<Question> {
        let mut waiting = self.lock();
        loop {
            match waiting.questions.pop_front() {
                None if !waiting.is_closed => self.filled.wait(&mut waiting),
                next => return next,
            }
        }
    }

    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.filled.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, QuestionQueue> {
        self.waiting.lock()
    }
}

impl std::fmt::Debug for Questions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Questions")
    }
}

/// Held by the threads that serve a queue: when the last has ended, even by a panic, no caller waits any more.
pub(super) struct QuestionsGuard(pub(super) Arc<Questions>);

impl Drop for QuestionsGuard {
    fn drop(&mut self) {
        let left = std::mem::replace(
            &mut *self.0.lock(),
            QuestionQueue { is_closed: true, questions: VecDeque::new() },
        );
        // Dropping a question drops its reply, which its caller sees. Not under the lock, because a caller may come back.
        drop(left);
    }
}

/// Starts one thread. It opens its connection when it is first asked.
pub(super) fn start(file: StoreFile, guard: Arc<QuestionsGuard>) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("ibid-sqlite-read".to_owned()).spawn(move || {
        let mut reader = Reader { file, connection: None, policies: Policies::default() };
        while let Some(question) = guard.0.take() {
            question(&mut reader);
        }
    })
}

pub(super) struct Reader {
    file: StoreFile,
    connection: Option<Connection>,
    policies: Policies,
}

impl Reader {
    /// Runs `look` on one snapshot of the file.
    pub(super) fn read<T>(
        &mut self,
        op: &'static str,
        look: impl FnOnce(&mut FileSnapshot<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.look(look).map_err(|error| {
            if spoils_connection(&error) {
                self.connection = None;
            }
            store_error(op, error)
        })
    }

    fn look<T>(
        &mut self,
        look: impl FnOnce(&mut FileSnapshot<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(open::reader(&self.file)?),
        };
        // Read before the snapshot is taken: a record that looks due then was due, and a takeover can only be late.
        let now = self.file.now();
        let snapshot = connection.unchecked_transaction()?;
        look(&mut FileSnapshot { connection: &snapshot, policies: &mut self.policies, now })
    }
}

/// The file at one instant.
pub(super) struct FileSnapshot<'c> {
    pub(super) connection: &'c Connection,
    policies: &'c mut Policies,
    pub(super) now: Timestamp,
}

/// Records that a scan found, each with the cursor behind it.
pub(super) struct Scan {
    pub(super) records: Vec<(StoredRecord, Cursor)>,
    /// Cursor of the rest, if the scan ended because it had read enough rows.
    rest: Option<Cursor>,
}

impl Scan {
    /// Returns a page of at most `limit` records.
    pub(super) fn page(self, limit: u32) -> Page<StoredRecord> {
        let page = Page::new(self.records, limit, |(_, cursor)| cursor.clone());
        let items = page.items.into_iter().map(|(stored, _)| stored).collect();
        Page { items, next: page.next.or(self.rest) }
    }
}

impl FileSnapshot<'_> {
    pub(super) fn load(&mut self, id: RecordId) -> rusqlite::Result<Option<StoredRecord>> {
        let FileSnapshot { connection, policies, now } = self;
        let mut load = connection.prepare_cached(include_str!("../../record_sql/sqlite/load.sql"))?;
        let params = params![id.as_bytes(), now.as_micros()];
        load.query_row(params, |row| row::read_stored(connection, policies, row, *now)).optional()
    }

    pub(super) fn due(
        &mut self,
        state: State,
        after: Option<&Cursor>,
        limit: u32,
    ) -> rusqlite::Result<Page<StoredRecord>> {
        let (at, after) = after.and_then(parse_cursor).unwrap_or((i64::MIN, 0));
        let params = params![state.code(), self.now.as_micros(), at, after, ROWS_MAX];
        let scan = self.scan(include_str!("sql/due.sql"), params, limit, |_| true, position_cursor)?;
        Ok(scan.page(limit))
    }

    /// Reads rows until `limit` records fit, and one more. A record that cannot be read is logged and passed over, so that it
    /// does not hide those behind it.
    pub(super) fn scan(
        &mut self,
        sql: &str,
        params: impl rusqlite::Params,
        limit: u32,
        fits: impl Fn(&StoredRecord) -> bool,
        cursor: impl Fn(&Row<'_>) -> rusqlite::Result<Cursor>,
    ) -> rusqlite::Result<Scan> {
        let FileSnapshot { connection, policies, now } = self;
        let mut statement = connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let (mut records, mut unread, mut last, mut count) = (Vec::new(), Vec::new(), None, 0);
        while records.len() <= limit as usize
            && let Some(row) = rows.next()?
        {
            count += 1;
            last = Some(cursor(row)?);
            match row::read_stored(connection, policies, row, *now) {
                Ok(stored) if fits(&stored) => records.extend(last.clone().map(|cursor| (stored, cursor))),
                Ok(_) => {}
                Err(error) if row::is_unreadable(&error) => unread.push((row::short_id(row), error)),
                Err(error) => return Err(error),
            }
        }
        if let Some((record, why)) = unread.first() {
            tracing::error!(count = unread.len(), %record, %why, "records can't be read and are left out");
        }
        Ok(Scan { records, rest: last.filter(|_| count == ROWS_MAX) })
    }

    pub(super) fn bodies(&mut self, id: RecordId, birth: Nonce) -> rusqlite::Result<Vec<LoadedBody>> {
        let mut bodies = self.connection.prepare_cached(include_str!("sql/bodies.sql"))?;
        let rows = bodies.query_map(params![id.as_bytes(), bits(birth)], |row| {
            Ok(LoadedBody { kind: row.get(0)?, data: row.get::<_, Vec<u8>>(1)?.into() })
        })?;
        rows.collect()
    }
}

/// Returns the value of one setting.
pub(super) fn setting(connection: &Connection, name: &str) -> rusqlite::Result<Option<Bytes>> {
    let mut setting = connection.prepare_cached(include_str!("sql/setting.sql"))?;
    setting.query_row([name], |row| row.get(0).map(|value: Vec<u8>| Bytes::from(value))).optional()
}

/// Encodes a position: an instant, and a row as the tie-breaker.
pub(super) fn cursor_of(at: i64, row: i64) -> Cursor {
    Cursor(Bytes::from([at.to_be_bytes(), row.to_be_bytes()].concat()))
}

/// Decodes the position of [`cursor_of`]; `None` if this is another cursor.
pub(super) fn parse_cursor(cursor: &Cursor) -> Option<(i64, i64)> {
    parse_position(&cursor.0)
}

/// Decodes an instant and a row.
pub(super) fn parse_position(bytes: &[u8]) -> Option<(i64, i64)> {
    let (at, row) = bytes.split_first_chunk::<8>()?;
    Some((i64::from_be_bytes(*at), i64::from_be_bytes(row.try_into().ok()?)))
}

/// Returns the cursor behind a row that ends with its position.
pub(super) fn position_cursor(row: &Row<'_>) -> rusqlite::Result<Cursor> {
    row::position(row).map(|(at, row)| cursor_of(at, row))
}

/// Rows that one scan reads at most, whether they fit or not: some hundred milliseconds. The page then continues behind
/// them.
pub(super) const ROWS_MAX: i64 = 100_000;

/// Most questions that wait: over a second of work for four threads. A caller that waits longer has given up.
const QUESTIONS_MAX: usize = 1 << 14;
