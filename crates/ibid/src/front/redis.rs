//! Redis as the cache that nodes share: one entry and one short lock per record.
//!
//! A lookup is one round trip: it gets the entry and tries to take the lock (`SET NX PX`). A node that gets neither waits
//! some milliseconds for the entry of the node that has the lock. The lock decides nothing, and no node releases it: it
//! ends by itself.
//!
//! Redis may lose, evict or corrupt everything. Entries are authenticated with a secret of the store (`entry.rs`).
//!
//! Lookups and writes have a connection each, so that no lookup waits behind a large response on its way to the server.

mod checkup;
mod link;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::redis::{Client, RedisResult, Script};
use bytes::Bytes;
use foldhash::fast::RandomState;
use futures_util::FutureExt as _;
use futures_util::future::{Shared, join_all};
use ibid_core::scope::RecordId;
use ibid_core::store::{BoxFuture, Store, StoreError};
use metrics::counter;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

pub use self::checkup::FrontCheckup;
use self::link::{Link, OutageLog, is_demoted};
use super::entry::EntryKey;
use super::{SharedCache, SharedEntry, TIMEOUT};
use crate::random::random;
use crate::redis_target::{RedisTarget, RedisUrlError};
use crate::telemetry;

/// Redis in front of a store.
pub struct RedisFront {
    server: Arc<Server>,
    /// One lookup per record at a time: a burst of duplicates in this process asks once.
    lookups: Arc<Mutex<HashMap<RecordId, Lookup, RandomState>>>,
    writes: mpsc::Sender<Write>,
    /// Kilobytes that may wait to be written.
    room: Arc<Semaphore>,
    /// Kilobytes of the largest response that is shared.
    entry_kib_max: usize,
}

type Lookup = Shared<BoxFuture<'static, Option<SharedEntry>>>;

/// Options of a [`RedisFront`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RedisFrontOptions {
    /// Longest wait for one reply of the server. Past it the store is asked. Keep it well below
    /// [`Settings::begin_timeout`](crate::Settings::begin_timeout), which a lookup is part of. It also bounds the size of a response
    /// that is shared: 50 KiB for each millisecond, and 4 MiB at most.
    pub timeout: Duration,
    /// Longest wait for the entry of another node that asks the store. Longer than a read of the store usually takes; past it, this
    /// node asks the store itself.
    pub lock_wait: Duration,
}

impl RedisFrontOptions {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut RedisFrontOptions)) -> RedisFrontOptions {
        change(&mut self);
        self
    }
}

impl Default for RedisFrontOptions {
    fn default() -> Self {
        RedisFrontOptions { timeout: TIMEOUT, lock_wait: LOCK_WAIT }
    }
}

/// The error of [`RedisFront::open`]. A server that does not answer is none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisFrontError {
    /// The URL can't be used.
    #[error("not the URL of a Redis server (`redis://HOST:PORT`): {why}")]
    BadUrl {
        /// Mistake in the URL, without its text.
        why: String,
    },
    /// TLS was asked for and cannot be set up.
    #[error("cannot set up TLS to Redis")]
    Tls {
        /// Cause of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server does not answer, or refuses the user. Only [`RedisFront::checkup`] returns this.
    #[error("the server does not answer")]
    Unreachable {
        /// Cause of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store did not return the secret that entries are authenticated with.
    #[error("the store does not answer")]
    Store(#[from] StoreError),
}

impl RedisFront {
    /// Connects to the server, and reads the secret that authenticates entries from the store, or makes it.
    ///
    /// The URL is `redis://USER:PASSWORD@HOST:PORT/DATABASE`, or with TLS `rediss://…?sslrootcert=PATH` (feature `redis-tls`). A server
    /// that can't be reached is logged, and tried again while requests arrive.
    ///
    /// # Errors
    ///
    /// Fails if the URL can't be used or the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped midway, the secret may be stored. The next open reads it.
    pub async fn open(
        url: &str,
        store: &dyn Store,
        options: RedisFrontOptions,
    ) -> Result<RedisFront, RedisFrontError> {
        let (_, client) = parse(url)?;
        let secret = store.put_if_absent(SECRET, Bytes::copy_from_slice(&random::<32>())).await?;
        let key = EntryKey::new(&secret);
        let prefix = format!("ibid:front:{}:", key.store_name());
        let entry_kib_max = options.timeout.as_millis() as usize * ENTRY_KIB_PER_MS;
        let outages = Arc::<OutageLog>::default();
        let lookups =
            Link::start(client.clone(), options.timeout, Some(telemetry::FRONT_UP), outages.clone());
        let writes = Link::start(client, WRITE_TIMEOUT, None, outages);
        let (lookups, writes) = tokio::join!(lookups, writes);
        let server = Arc::new(Server { lookups, writes, key, prefix, lock_wait: options.lock_wait });
        let (writes, queue) = mpsc::channel(WRITES_MAX);
        tokio::spawn(write_all(server.clone(), queue));
        Ok(RedisFront {
            server,
            lookups: Arc::default(),
            writes,
            room: Arc::new(Semaphore::new(QUEUED_KIB_MAX)),
            entry_kib_max: entry_kib_max.min(ENTRY_KIB_MAX),
        })
    }

    /// Checks a URL without connecting, and returns it without user and password.
    ///
    /// # Errors
    ///
    /// Fails if the URL can't be used.
    pub fn display_url_of(url: &str) -> Result<String, RedisFrontError> {
        Ok(parse(url)?.0.to_string())
    }
}

fn parse(url: &str) -> Result<(RedisTarget, Client), RedisFrontError> {
    let bad = |why: &str| RedisFrontError::BadUrl { why: why.to_owned() };
    let target = RedisTarget::parse(url).map_err(url_error)?;
    if target.accept_weak_durability {
        return Err(bad("`durability` is for a store, and a cache has none"));
    }
    let mut addresses = target.addresses();
    match (addresses.next(), addresses.next()) {
        (Some(address), None) => {
            let client = target.client(address).map_err(url_error)?;
            Ok((target.clone(), client))
        }
        _ => Err(bad("it names several servers, and a cluster is not supported")),
    }
}

fn url_error(error: RedisUrlError) -> RedisFrontError {
    match error {
        RedisUrlError::Wrong(why) => RedisFrontError::BadUrl { why },
        RedisUrlError::Tls(source) => RedisFrontError::Tls { source },
    }
}

impl fmt::Debug for RedisFront {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisFront").field("prefix", &self.server.prefix).finish_non_exhaustive()
    }
}

impl SharedCache for RedisFront {
    fn find(&self, id: RecordId) -> BoxFuture<'_, Option<SharedEntry>> {
        let mut lookups = self.lookups.lock();
        let lookup = lookups.entry(id).or_insert_with(|| {
            let (server, ended, writes) = (self.server.clone(), self.lookups.clone(), self.writes.clone());
            let lookup: BoxFuture<'static, _> = Box::pin(async move {
                let entry = server.look(id, &writes).await;
                ended.lock().remove(&id);
                entry
            });
            lookup.shared()
        });
        Box::pin(lookup.clone())
    }

    fn put(&self, entry: SharedEntry, lives: Duration) {
        let kib = entry.response.body.len() / 1024 + 1;
        if kib > self.entry_kib_max {
            // An entry of an earlier version must not outlive this one.
            return self.remove(entry.record.id);
        }
        if let Ok(room) = self.room.clone().try_acquire_many_owned(kib as u32) {
            // If the queue is full, the entry is dropped: the next node asks the store.
            let _ = self.writes.try_send(Write::Put { entry, lives, _room: room });
        }
    }

    fn remove(&self, id: RecordId) {
        let _ = self.writes.try_send(Write::Remove(id));
    }
}

enum Write {
    Put { entry: SharedEntry, lives: Duration, _room: OwnedSemaphorePermit },
    Remove(RecordId),
}

/// The server, and how this store's entries are named and sealed on it.
struct Server {
    lookups: Link,
    writes: Link,
    key: EntryKey,
    prefix: String,
    lock_wait: Duration,
}

impl Server {
    fn name(&self, id: RecordId) -> String {
        format!("{}{id}", self.prefix)
    }

    /// Gets the entry, or waits for it while another node has the lock.
    async fn look(&self, id: RecordId, writes: &mpsc::Sender<Write>) -> Option<SharedEntry> {
        let name = self.name(id);
        let mut first = ::redis::pipe();
        first
            .getrange(&name, 0, ENTRY_BYTES_MAX - 1)
            .cmd("SET")
            .arg(format!("{name}:lock"))
            .arg(1)
            .arg("NX")
            .arg("PX");
        first.arg((self.lock_wait.as_millis() as u64 * LOCK_WAITS).max(1)).ignore_errors();
        let (mut found, is_locked_out) = self
            .lookups
            .ask(async |connection| {
                let (found, locked): (RedisResult<Vec<u8>>, RedisResult<Option<String>>) =
                    first.query_async(connection).await?;
                match locked {
                    Err(error) if is_demoted(&error) => Err(error),
                    // A server that is full refuses the lock and still has entries.
                    locked => Ok((found?, matches!(locked, Ok(None)))),
                }
            })
            .await?;
        let until = Instant::now() + self.lock_wait;
        let get = ::redis::Cmd::getrange(&name, 0, ENTRY_BYTES_MAX - 1);
        while found.is_empty() && is_locked_out && Instant::now() < until {
            tokio::time::sleep(LOOK_EVERY).await;
            found = self.lookups.ask(async |connection| get.query_async(connection).await).await?;
        }
        if found.is_empty() {
            return None;
        }
        let opened = self.key.open(id, &found);
        if opened.is_none() {
            counter!(telemetry::FRONT_IGNORED).increment(1);
            // It would be in the way of every node until it expires.
            let _ = writes.try_send(Write::Remove(id));
        }
        opened
    }

    async fn write(&self, write: Write) {
        let _: Option<()> = match write {
            Write::Put { entry, lives, _room } => {
                let sealed = self.key.seal(&entry);
                if sealed.len() > ENTRY_BYTES_MAX.unsigned_abs() {
                    // An entry of an earlier version must not outlive this one.
                    return self.delete(entry.record.id).await;
                }
                let mut put = PUT.key(self.name(entry.record.id));
                put.arg(sealed).arg((lives.as_millis() as u64).max(1));
                self.writes.ask(async |connection| put.invoke_async(connection).await).await
            }
            Write::Remove(id) => return self.delete(id).await,
        };
    }

    async fn delete(&self, id: RecordId) {
        let remove = ::redis::Cmd::del(self.name(id));
        let _: Option<()> = self.writes.ask(async |connection| remove.query_async(connection).await).await;
    }
}

/// Writes what is queued, some at a time, until the front is dropped. Lookups don't wait for it.
async fn write_all(server: Arc<Server>, mut queue: mpsc::Receiver<Write>) {
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, WRITES_AT_ONCE).await > 0 {
        join_all(batch.drain(..).map(|write| server.write(write))).await;
    }
}

/// Puts an entry unless the server has one that was read at the same time or later: a node that was held up must not
/// replace a newer version.
static PUT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("redis/put.lua")));

/// Name of the setting in the store that holds the secret of the entries.
const SECRET: &str = "front secret";

/// Default value of [`RedisFrontOptions::lock_wait`].
const LOCK_WAIT: Duration = Duration::from_millis(10);

/// Duration of the lock, in waits of a node without it: about as long as a store takes to answer a begin under load. A node that died
/// with it holds up each of the others once.
const LOCK_WAITS: u64 = 3;

/// Pause between two looks for that entry.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Writes that may wait. More of them would only be entries that come too late.
const WRITES_MAX: usize = 4096;

/// Writes that are on their way at a time: enough to hide the round trip, and at most 64 MiB.
const WRITES_AT_ONCE: usize = 16;

/// Longest wait for the reply to a write. No request waits for it, and a large one takes longer than a lookup.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Kilobytes of responses that may wait: they are held in memory.
const QUEUED_KIB_MAX: usize = 64 << 10;

/// Kilobytes of the largest response that is shared, for each millisecond that a lookup waits: a reply of that size takes half of
/// the wait on a network of 1 Gbit/s. A larger one would be late and hold up every other reply on the connection.
const ENTRY_KIB_PER_MS: usize = 50;

/// Kilobytes of the largest response that is shared, however long a lookup waits.
const ENTRY_KIB_MAX: usize = 4 << 10;

/// Bytes of an entry that are read at most: the largest response, and as much again for the largest record with its headers. Another
/// program may have put something larger there.
const ENTRY_BYTES_MAX: isize = 2 * (ENTRY_KIB_MAX << 10) as isize;
