//! Threads that read, each on a connection of its own that cannot write.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use ibid_core::change::{History, HistoryKind, StoredRecord};
use ibid_core::evidence::{EvidenceQuery, StoredEvidence};
use ibid_core::fingerprint::SecretId;
use ibid_core::reap::{ReapCount, ReapTarget};
use ibid_core::record::{Flags, Nonce, State};
use ibid_core::scope::RecordId;
use ibid_core::store::{PathPart, PathPattern, RecordCounts, RecordFilter, StoreError};
use ibid_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot::Sender;

use super::failure::{spoils_connection, store_error};
use super::queue::{Found, Serving, Weigh};
use super::row::{self, Policies, unreadable};
use super::{Place, evidence, open, reap};

/// A question, and where to send the answer.
pub(super) enum Ask {
    Load { ids: Vec<RecordId>, reply: Reply<Vec<Option<StoredRecord>>> },
    Due { state: State, limit: u32, reply: Reply<Vec<StoredRecord>> },
    List { filter: RecordFilter, reply: Reply<Vec<StoredRecord>> },
    History { id: RecordId, reply: Reply<Vec<(Timestamp, History)>> },
    OtherSecret { known: Vec<SecretId>, reply: Reply<Option<SecretId>> },
    Bodies { id: RecordId, birth: Nonce, reply: Reply<Vec<(u32, Bytes)>> },
    Count { reply: Reply<RecordCounts> },
    Evidence { which: EvidenceQuery, limit: u32, reply: Reply<Vec<StoredEvidence>> },
    Ripe { course: ReapTarget, reply: Reply<ReapCount> },
    Setting { name: String, reply: Reply<Option<Bytes>> },
}

type Reply<T> = Sender<Result<T, StoreError>>;

impl Weigh for Ask {
    fn weight(&self) -> usize {
        match self {
            Ask::Load { ids, .. } => ASK_BYTES * ids.len().max(1),
            Ask::Due { .. }
            | Ask::List { .. }
            | Ask::History { .. }
            | Ask::OtherSecret { .. }
            | Ask::Bodies { .. }
            | Ask::Count { .. }
            | Ask::Evidence { .. }
            | Ask::Ripe { .. }
            | Ask::Setting { .. } => ASK_BYTES,
        }
    }
}

/// Starts one such thread. It opens its connection when it is first asked.
pub(super) fn start(place: Place, serving: Arc<Serving<Ask>>) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("ibid-sqlite-read".to_owned()).spawn(move || {
        let mut reader = Reader { place, connection: None, policies: Policies::default() };
        while let Found::Job(ask) = serving.0.take(None) {
            reader.answer(ask);
        }
    })
}

struct Reader {
    place: Place,
    connection: Option<Connection>,
    policies: Policies,
}

impl Reader {
    fn answer(&mut self, ask: Ask) {
        // Whoever left no longer needs to know.
        match ask {
            Ask::Load { ids, reply } => drop(reply.send(self.read("load", |view| view.load(&ids)))),
            Ask::Due { state, limit, reply } => {
                drop(reply.send(self.read("find due records", |view| view.due(state, limit))));
            }
            Ask::List { filter, reply } => drop(reply.send(self.read("list", |view| view.list(&filter)))),
            Ask::History { id, reply } => {
                drop(reply.send(self.read("read the history", |view| view.history(id))));
            }
            Ask::OtherSecret { known, reply } => {
                drop(reply.send(self.read("look for secrets", |view| view.find_unknown_secret(&known))));
            }
            Ask::Bodies { id, birth, reply } => {
                drop(reply.send(self.read("read bodies", |view| view.bodies(id, birth))));
            }
            Ask::Count { reply } => drop(reply.send(self.read("count", |view| view.count()))),
            Ask::Evidence { which, limit, reply } => {
                let found = self.read("find evidence", |view| evidence::open(view.connection, which, limit));
                drop(reply.send(found));
            }
            Ask::Ripe { course, reply } => {
                let ripe = |view: &mut View<'_>| reap::ripe(view.connection, course, view.now);
                drop(reply.send(self.read("count what would go", ripe)));
            }
            Ask::Setting { name, reply } => {
                drop(reply.send(self.read("read a setting", |view| setting(view.connection, &name))));
            }
        }
    }

    /// Runs `look` on one snapshot of the file.
    fn read<T>(
        &mut self,
        op: &'static str,
        look: impl FnOnce(&mut View<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.look(look).map_err(|error| {
            if spoils_connection(&error) {
                self.connection = None;
            }
            store_error(op, error)
        })
    }

    fn look<T>(&mut self, look: impl FnOnce(&mut View<'_>) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(open::reader(&self.place)?),
        };
        // Read before the snapshot is taken: what looks due then was due, and a takeover can only be late.
        let now = self.place.now();
        let snapshot = connection.unchecked_transaction()?;
        look(&mut View { connection: &snapshot, policies: &mut self.policies, now })
    }
}

/// The file at one instant.
struct View<'c> {
    connection: &'c Connection,
    policies: &'c mut Policies,
    now: Timestamp,
}

impl View<'_> {
    fn load(&mut self, ids: &[RecordId]) -> rusqlite::Result<Vec<Option<StoredRecord>>> {
        let View { connection, policies, now } = self;
        let mut load = connection.prepare_cached(include_str!("sql/load.sql"))?;
        let mut one = |id: &RecordId| {
            let found = load.query_row([id.as_bytes()], |row| row::stored(connection, policies, row, *now));
            found.optional()
        };
        ids.iter().map(&mut one).collect()
    }

    fn due(&mut self, state: State, limit: u32) -> rusqlite::Result<Vec<StoredRecord>> {
        let now = self.now.as_micros();
        self.many(include_str!("sql/due.sql"), params![state.code(), now, most(limit)], limit)
    }

    fn list(&mut self, filter: &RecordFilter) -> rusqlite::Result<Vec<StoredRecord>> {
        let all = (RecordId::from_bytes([0; RecordId::LEN]), RecordId::from_bytes([0xff; RecordId::LEN]));
        let (low, high) = filter.prefix.as_ref().map_or(all, |prefix| prefix.bounds());
        // Nothing sorts before the empty string of bytes.
        let after = filter.after.as_ref().map_or(&[][..], |id| id.as_bytes());
        let fit = params![
            low.as_bytes(),
            high.as_bytes(),
            after,
            filter.state.map(State::code),
            filter.tenant,
            filter.key,
            filter.method,
            filter.path.as_ref().map(glob),
            filter.path.as_ref().and_then(PathPattern::slashes),
            filter.dead_letter.then_some(Flags::DEAD_LETTER),
            filter.created_from.map(Timestamp::as_micros),
            filter.before(self.now).map(Timestamp::as_micros),
            most(filter.limit)
        ];
        self.many(include_str!("sql/list.sql"), fit, filter.limit)
    }

    /// The first `limit` of those that can be read. One that can't is told of and passed over: it must not hide those
    /// behind it.
    fn many(
        &mut self,
        sql: &str,
        params: impl rusqlite::Params,
        limit: u32,
    ) -> rusqlite::Result<Vec<StoredRecord>> {
        let View { connection, policies, now } = self;
        let mut statement = connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let (mut read, mut unread) = (Vec::new(), Vec::new());
        while read.len() < limit as usize
            && let Some(row) = rows.next()?
        {
            match row::stored(connection, policies, row, *now) {
                Ok(stored) => read.push(stored),
                Err(error) if row::is_unreadable(&error) => unread.push((row::short(row), error)),
                Err(error) => return Err(error),
            }
        }
        if let Some((record, why)) = unread.first() {
            tracing::error!(count = unread.len(), %record, %why, "records can't be read and are left out");
        }
        Ok(read)
    }

    fn history(&mut self, id: RecordId) -> rusqlite::Result<Vec<(Timestamp, History)>> {
        let mut history = self.connection.prepare_cached(include_str!("sql/history.sql"))?;
        let lines = history.query_map([id.as_bytes()], |row| {
            let what =
                HistoryKind::from_code(row.get(1)?).ok_or_else(|| unreadable(1, "an unknown event"))?;
            Ok((Timestamp::from_micros(row.get(0)?), History { what, detail: row.get(2)? }))
        })?;
        lines.collect()
    }

    fn find_unknown_secret(&mut self, known: &[SecretId]) -> rusqlite::Result<Option<SecretId>> {
        // Hex digits need no escapes.
        let known: Vec<String> = known.iter().map(|id| format!("\"{id}\"")).collect();
        let mut other = self.connection.prepare_cached(include_str!("sql/other_secret.sql"))?;
        let found =
            other.query_row([format!("[{}]", known.join(","))], |row| row.get::<_, [u8; SecretId::LEN]>(0));
        Ok(found.optional()?.map(SecretId::from_bytes))
    }

    fn bodies(&mut self, id: RecordId, birth: Nonce) -> rusqlite::Result<Vec<(u32, Bytes)>> {
        let mut bodies = self.connection.prepare_cached(include_str!("sql/bodies.sql"))?;
        let rows = bodies.query_map(params![id.as_bytes(), row::bits(birth)], |row| {
            Ok((row.get(0)?, Bytes::from(row.get::<_, Vec<u8>>(1)?)))
        })?;
        rows.collect()
    }

    fn count(&mut self) -> rusqlite::Result<RecordCounts> {
        let mut count = self.connection.prepare_cached(include_str!("sql/count.sql"))?;
        let mut rows = count.query([Flags::DEAD_LETTER])?;
        let mut counts = RecordCounts::default();
        while let Some(row) = rows.next()? {
            let state = State::from_code(row.get(0)?).ok_or_else(|| unreadable(0, "an unknown state"))?;
            // Every state is among all states.
            let place = State::ALL.iter().position(|known| *known == state).unwrap_or_default();
            counts.by_state[place] = row.get::<_, i64>(1)?.cast_unsigned();
            counts.dead_letters += row.get::<_, i64>(2)?.cast_unsigned();
            counts.oldest[place] = Some(self.now.since(Timestamp::from_micros(row.get(3)?)));
        }
        let mut effects = self.connection.prepare_cached(include_str!("sql/count_effects.sql"))?;
        counts.dead_effects = effects.query_row([], |row| row.get::<_, i64>(0))?.cast_unsigned();
        Ok(counts)
    }
}

/// Returns the value of one setting.
pub(super) fn setting(connection: &Connection, name: &str) -> rusqlite::Result<Option<Bytes>> {
    let mut setting = connection.prepare_cached(include_str!("sql/setting.sql"))?;
    setting.query_row([name], |row| row.get(0).map(|value: Vec<u8>| Bytes::from(value))).optional()
}

/// The pattern as GLOB takes it: unlike LIKE it tells `a` from `A`.
fn glob(pattern: &PathPattern) -> String {
    let mut glob = String::new();
    for part in pattern.parts() {
        match part {
            PathPart::Some => glob.push_str("?*"),
            PathPart::Text(text) => text.chars().for_each(|char| match char {
                '*' | '?' | '[' => glob.extend(['[', char, ']']),
                char => glob.push(char),
            }),
        }
    }
    glob
}

/// How many to ask for, so that enough can be read: rows are stepped through until they are.
fn most(limit: u32) -> i64 {
    i64::from(limit) + UNREADABLE_MAX
}

/// Records that can't be read and are passed over at once. With more of them this is no ibid to work on that file.
const UNREADABLE_MAX: i64 = 10_000;

/// About what a question weighs while it waits; its answer weighs more.
const ASK_BYTES: usize = 4 << 10;
