//! A store in Redis 7 or later: a single server or a cluster.
//!
//! Each verb is one script, which runs alone on the server that owns the record's bucket; the server's clock sets every
//! instant. Durability depends on the server: one with replicas, in a cluster, or with settings that can't be read may lose
//! what it has confirmed, and opens only with `durability=weak`.
//!
//! ```no_run
//! # async fn open() -> Result<(), Box<dyn std::error::Error>> {
//! use ibid::store::redis::{RedisOptions, RedisStore};
//!
//! let store = RedisStore::open("redis://127.0.0.1:6379", RedisOptions::default()).await?;
//! # Ok(()) }
//! ```

mod browse;
mod checkup;
mod copy;
mod data_ids;
mod error;
mod evidence;
mod key;
mod node;
mod nodes;
mod open;
mod order;
mod policies;
mod record_bytes;
mod records;
mod reply;
mod script;
mod send_flight;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use ibid_core::change::{BodyKind, Change, Commit, Expect, LoadedBody, StoredRecord};
use ibid_core::evidence::EvidenceStore;
use ibid_core::reap::{ReapStep, ReapTarget};
use ibid_core::record::{Nonce, State, Version};
use ibid_core::row::micros;
use ibid_core::scope::RecordId;
use ibid_core::store::{
    BodyStore, BoxFuture, BrowseStore, CopyStore, Cursor, Durability, Page, RenewOutcome, SetOutcome, Store,
    StoreClock, StoreError, StoreFacts,
};
use ibid_core::time::Timestamp;
use parking_lot::Mutex;
use redis::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::copy::BucketMembers;
use self::error::Failure;
use self::key::Bucket;
use self::nodes::Nodes;
pub use self::open::RedisOpenError;
use self::order::{Order, OrderPosition, RangeEnd};
use self::policies::RedisPolicies;
use self::records::RedisRecords;
use self::reply::{bytes, number, time};
use super::checkup::Checkup;
#[doc(hidden)]
pub use super::commit_queue::BatchCounts;
use super::commit_queue::CommitQueue;
use crate::random::random;
use crate::redis_target::RedisTarget;

/// Options of a [`RedisStore`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RedisOptions {
    /// Begin on a server without records of ibid.
    pub create: bool,
    /// Open a server that may lose what it has confirmed. The URL parameter `durability=weak` does the same.
    pub accept_weak_durability: bool,
    /// Time between two looks at the server's settings and replicas. After one that finds it weaker than accepted nothing begins.
    pub inspect_every: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        RedisOptions { create: true, accept_weak_durability: false, inspect_every: INSPECT_EVERY }
    }
}

impl RedisOptions {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut RedisOptions)) -> RedisOptions {
        change(&mut self);
        self
    }
}

/// A store in Redis.
pub struct RedisStore {
    nodes: Arc<Nodes>,
    policies: Arc<RedisPolicies>,
    records: Arc<RedisRecords>,
    /// Batches changes, on a single server.
    flights: Option<CommitQueue<RedisRecords>>,
    /// Bounds the changes that are on their way besides.
    permits: Semaphore,
    /// Members of the bucket that a copy reads.
    copy_members: Mutex<Option<BucketMembers>>,
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("durability", &self.facts().durability).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Connects to the servers that the URL names, checks them, and opens the store. A task looks at them again every minute, until
    /// the store is dropped.
    ///
    /// # Errors
    ///
    /// Fails if no server answers, or if it could not keep records as the options demand.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped midway, the layout may be stored in an empty server. The next open finds it.
    pub async fn open(url: &str, options: RedisOptions) -> Result<RedisStore, RedisOpenError> {
        let mut target = RedisTarget::parse(url)?;
        target.accept_weak_durability |= options.accept_weak_durability;
        let display_url = target.to_string();
        let (nodes, _) = Nodes::open(target).await?;
        let store = RedisStore::on(nodes);
        store.check_layout(display_url, options.create).await?;
        tokio::spawn(keep_inspecting(Arc::downgrade(&store.nodes), options.inspect_every));
        Ok(store)
    }

    /// Returns the URL as messages may show it: without user, password and parameters.
    ///
    /// # Errors
    ///
    /// Fails if the URL cannot be parsed.
    pub fn display_url_of(url: &str) -> Result<String, RedisOpenError> {
        Ok(RedisTarget::parse(url)?.to_string())
    }

    fn on(nodes: Nodes) -> RedisStore {
        let (nodes, policies) = (Arc::new(nodes), Arc::new(RedisPolicies::default()));
        let records = Arc::new(RedisRecords { nodes: nodes.clone(), policies: policies.clone() });
        let flights = (!nodes.is_cluster()).then(|| CommitQueue::start(records.clone(), LANES, 0));
        RedisStore {
            nodes,
            policies,
            records,
            flights,
            permits: Semaphore::new(CHANGES_MAX),
            copy_members: Mutex::default(),
        }
    }

    /// Returns how many scripts were sent for several changes, and how many changes were in them.
    #[doc(hidden)]
    pub fn batch_counts(&self) -> BatchCounts {
        self.flights.as_ref().map_or_else(BatchCounts::default, CommitQueue::counts)
    }

    /// Describes the server, also one that opening would refuse. Changes nothing.
    ///
    /// # Errors
    ///
    /// Fails if no server answers or it refuses the user.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    #[doc(hidden)]
    pub async fn checkup(url: &str) -> Result<Checkup, RedisOpenError> {
        checkup::look(url).await
    }

    async fn check_layout(&self, display_url: String, create: bool) -> Result<(), RedisOpenError> {
        let known = format!("{FORMAT}/{}", key::BUCKETS);
        let failed =
            |source| RedisOpenError::Failed { display_url: display_url.clone(), source: Box::new(source) };
        let stored = match create {
            true => Some(self.put_if_absent(LAYOUT, Bytes::from(known.clone())).await.map_err(failed)?),
            false => self.setting(LAYOUT).await.map_err(failed)?,
        };
        match stored {
            Some(stored) if stored == known.as_bytes() => {
                // Another server with the same layout, or this one without its data, has another id or none.
                let id = Bytes::copy_from_slice(&random::<16>());
                let id = self.put_if_absent(STORE_ID, id).await.map_err(failed)?;
                self.nodes.watch_data(&id).await;
                Ok(())
            }
            Some(stored) => {
                let stored = String::from_utf8_lossy(&stored).into_owned();
                Err(RedisOpenError::OtherLayout { display_url, found: stored, known })
            }
            None => Err(RedisOpenError::Empty { display_url }),
        }
    }

    /// Reads the time, a record and the body of its response from a reply; `None` if there is no record.
    async fn read_record(&self, id: &RecordId, parts: &[Value]) -> Result<Option<StoredRecord>, Failure> {
        self.records.read(id, parts).await
    }

    /// Loads the members of orders that are still there. Passes over those that can't be read, and logs them.
    async fn load_members(
        &self,
        ids: impl IntoIterator<Item = RecordId>,
    ) -> Vec<Result<Option<StoredRecord>, Failure>> {
        let loads = ids.into_iter().map(async |id| match self.records.load(&id).await {
            Err(Failure::Lasting(error)) => {
                tracing::error!(record = id.short(), error, "record can't be read; passed over");
                Ok(None)
            }
            loaded => loaded,
        });
        join_all(loads).await
    }

    async fn renew_lease(&self, id: RecordId, version: Version) -> Result<RenewOutcome, Failure> {
        let bucket = Bucket::of(&id);
        let keys: Vec<Vec<u8>> = [key::record(&id)].into_iter().chain(bucket.orders()).collect();
        let arguments = [&id.as_bytes()[..], &record_bytes::version(version)];
        match self.nodes.run(&script::RENEW, bucket, &keys, &arguments, None).await? {
            Value::Array(parts) if parts.is_empty() => Ok(RenewOutcome::Lost),
            Value::Array(parts) => time(&parts).map(RenewOutcome::Until),
            _ => Err(Failure::reply()),
        }
    }

    async fn due_records(
        &self,
        state: State,
        after: Option<OrderPosition>,
        limit: u32,
    ) -> Result<Page<StoredRecord>, Failure> {
        let orders: Vec<Order> = Bucket::all().map(|bucket| state_order(bucket, state)).collect();
        let due = self.nodes.merge(&orders, after, RangeEnd::Now, limit as usize).await?;
        let loads = self.load_members(due.members.iter().map(|member| member.position.member)).await;
        let mut items: Vec<StoredRecord> = self.nodes.reachable(loads)?.into_iter().flatten().collect();
        items.retain(|stored| stored.record.state == state && stored.record.is_due(stored.now));
        Ok(Page { items, next: due.next.map(OrderPosition::cursor) })
    }

    async fn reap_records(&self, after: Option<OrderPosition>, limit: u32) -> Result<ReapStep, Failure> {
        let orders = all_orders();
        let ripe = self.nodes.merge(&orders, after, RangeEnd::Now, limit as usize).await?;
        let removals = ripe.members.iter().map(async |member| {
            let state = orders[member.order].state;
            let outcome = self.reap_record(&member.position.member, state, false).await?;
            Ok((outcome, member.position.score))
        });
        let mut step = ReapStep { next: ripe.next.map(OrderPosition::cursor), ..ReapStep::default() };
        for (outcome, since) in self.nodes.reachable(join_all(removals).await)? {
            step.stripped += u64::from(outcome == 1);
            step.removed += u64::from(outcome == 2);
            if outcome > 0 {
                let behind = ripe.now.since(Timestamp::from_micros(since));
                step.behind = step.behind.max(Some(behind));
            }
        }
        Ok(step)
    }

    /// Removes (2) or strips (1) a record that is past its time, or only says which of both would happen.
    async fn reap_record(&self, id: &RecordId, state: u8, only_looks: bool) -> Result<i64, Failure> {
        let bucket = Bucket::of(id);
        let mut keys = vec![key::record(id), key::bodies(id)];
        keys.extend(bucket.orders());
        let (state, only_looks) = (state.to_string(), [b'0' + u8::from(only_looks)]);
        let arguments = [&id.as_bytes()[..], state.as_bytes(), &only_looks];
        number(&self.nodes.run(&script::REAP, bucket, &keys, &arguments, None).await?)
    }

    async fn reap_history(
        &self,
        keep: Duration,
        after: Option<OrderPosition>,
        limit: u32,
    ) -> Result<ReapStep, Failure> {
        let old = self
            .nodes
            .merge(&history_orders(), after, RangeEnd::Before(micros(keep)), limit as usize)
            .await?;
        let removals = old.members.iter().map(|member| self.reap_lines(&member.position.member, keep, false));
        let removed = self.nodes.reachable(join_all(removals).await)?;
        let removed = removed.into_iter().sum::<i64>().cast_unsigned();
        Ok(ReapStep { removed, next: old.next.map(OrderPosition::cursor), ..ReapStep::default() })
    }

    /// Removes old lines of a record that is gone, or only counts them.
    async fn reap_lines(&self, id: &RecordId, keep: Duration, only_looks: bool) -> Result<i64, Failure> {
        let bucket = Bucket::of(id);
        let keys = [key::record(id), key::history(id), bucket.histories()];
        let (keep, most) = (micros(keep).to_string(), LINES_MAX.to_string());
        let only_looks = [b'0' + u8::from(only_looks)];
        let arguments = [&id.as_bytes()[..], keep.as_bytes(), most.as_bytes(), &only_looks];
        number(&self.nodes.run(&script::REAP_HISTORY, bucket, &keys, &arguments, None).await?)
    }
}

impl Store for RedisStore {
    fn facts(&self) -> StoreFacts {
        let durability = match self.nodes.weakness() {
            Some(reason) => Durability::Weak { reason },
            None => Durability::Durable,
        };
        // Each record has one clock for all nodes, that of its server. In a cluster, a slot that moves and a replica that takes over
        // bring another one: the page of this store says what that costs.
        StoreFacts { name: NAME, clock: StoreClock::Shared, durability }
    }

    fn load(&self, id: RecordId) -> BoxFuture<'_, Result<Option<StoredRecord>, StoreError>> {
        Box::pin(async move { self.records.load(&id).await.map_err(error_of("load a record")) })
    }

    fn commit(
        &self,
        change: Arc<Change>,
        send_by: Option<Instant>,
    ) -> BoxFuture<'_, Result<Commit, StoreError>> {
        Box::pin(async move {
            if change.draft.is_some() && change.expect == Expect::Anything {
                let why = "a change of a record must say what it expects";
                return Err(StoreError::lasting(NAME, OP, why).unwritten());
            }
            if change.body_bytes() > CHANGE_BYTES_MAX {
                let why = "its bodies are larger than the 32 MiB that this store takes";
                return Err(StoreError::lasting(NAME, OP, why).unwritten());
            }
            if let Some(flights) = &self.flights
                && self.records.may_fly(&change)
            {
                return flights.commit(change, send_by).await;
            }
            let permit = match change.expect {
                Expect::Absent => self.permits.try_acquire().ok(),
                // What ends an attempt waits its turn.
                _ => self.permits.acquire().await.ok(),
            };
            let Some(_permit) = permit else { return Err(StoreError::overloaded(NAME, OP)) };
            self.records.commit(&change, send_by).await.map_err(error_of(OP))
        })
    }

    fn renew(
        &self,
        leases: Vec<(RecordId, Version)>,
    ) -> BoxFuture<'_, Result<Vec<RenewOutcome>, StoreError>> {
        Box::pin(async move {
            let renewals = leases.into_iter().map(async |(id, version)| {
                let renewal = timeout(RENEW_WITHIN, self.renew_lease(id, version)).await;
                renewal.unwrap_or_else(|_| Err(Failure::unsent("no reply in time")))
            });
            let (mut outcomes, mut failures) = (Vec::new(), Vec::new());
            for renewal in join_all(renewals).await {
                outcomes.push(*renewal.as_ref().unwrap_or(&RenewOutcome::Busy));
                failures.extend(renewal.err());
            }
            // One slot that moves or one server that is away must not end the leases on the others.
            match failures.pop() {
                Some(failure) if failures.len() + 1 == outcomes.len() => {
                    Err(error_of("renew leases")(failure))
                }
                _ => Ok(outcomes),
            }
        })
    }

    fn due(
        &self,
        state: State,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        Box::pin(async move {
            let after = after.and_then(|cursor| OrderPosition::parse(&cursor.0));
            self.due_records(state, after, limit).await.map_err(error_of("find due records"))
        })
    }

    fn reap(
        &self,
        target: ReapTarget,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<ReapStep, StoreError>> {
        Box::pin(async move {
            let started = Instant::now();
            let after = after.and_then(|cursor| OrderPosition::parse(&cursor.0));
            let step = match target {
                ReapTarget::Records => self.reap_records(after, limit).await,
                ReapTarget::History { keep } => self.reap_history(keep, after, limit).await,
                // There is no outbox. A policy is some hundred bytes a bucket and stays. Memory is the server's own.
                ReapTarget::Effects { .. } | ReapTarget::Policies | ReapTarget::Room => {
                    Ok(ReapStep::default())
                }
            };
            let step = step.map_err(error_of("reap"))?;
            Ok(ReapStep { took: started.elapsed(), ..step })
        })
    }

    fn setting(&self, name: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            let (keys, arguments) = ([key::settings()], [name.as_bytes()]);
            let run = self.nodes.run(&script::FIELD, Bucket::SETTINGS, &keys, &arguments, None);
            let stored = run.await.map_err(error_of("read a setting"))?;
            Ok(bytes(&stored).map(Bytes::copy_from_slice))
        })
    }

    fn compare_and_set(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> BoxFuture<'_, Result<SetOutcome, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            let mut arguments = vec![name.as_bytes(), &value[..]];
            arguments.extend(expected.as_deref());
            let keys = [key::settings()];
            let script = match value.len() <= SMALL_SETTING_MAX {
                true => &script::SET_SMALL,
                false => &script::COMPARE_AND_SET,
            };
            let run = self.nodes.run(script, Bucket::SETTINGS, &keys, &arguments, None);
            let stored = run.await.map_err(error_of("write a setting"))?;
            Ok(SetOutcome::of(bytes(&stored).map(Bytes::copy_from_slice), &value))
        })
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

impl BodyStore for RedisStore {
    fn bodies(&self, id: RecordId, birth: Nonce) -> BoxFuture<'_, Result<Vec<LoadedBody>, StoreError>> {
        Box::pin(async move {
            let keys = [key::bodies(&id)];
            let run = self.nodes.run(&script::BODIES, Bucket::of(&id), &keys, &[], None);
            let Value::Array(stored) = run.await.map_err(error_of("load bodies"))? else {
                return Ok(Vec::new());
            };
            Ok(read_bodies(&stored, birth))
        })
    }
}

/// Inspects the servers again and again, until the store is dropped.
async fn keep_inspecting(nodes: Weak<Nodes>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(nodes) = nodes.upgrade() else { return };
        nodes.inspect_again().await;
    }
}

/// Reads the bodies of one generation besides the response, from kinds and bytes in turn.
fn read_bodies(stored: &[Value], birth: Nonce) -> Vec<LoadedBody> {
    let body = |pair: &[Value]| {
        let kind = std::str::from_utf8(bytes(pair.first()?)?).ok()?.parse().ok()?;
        let (of, data) = record_bytes::split_body(bytes(pair.get(1)?)?)?;
        (of == birth && kind != BodyKind::RESPONSE)
            .then(|| LoadedBody { kind, data: Bytes::copy_from_slice(data) })
    };
    stored.chunks(2).filter_map(body).collect()
}

/// Converts a failure to an error of the operation `op`.
fn error_of(op: &'static str) -> impl Fn(Failure) -> StoreError {
    move |failure| failure.into_store_error(op)
}

fn state_order(bucket: Bucket, state: State) -> Order {
    Order { bucket, key: bucket.order(state), state: state.code() }
}

/// Returns the orders of all states in all buckets. Every record is in one of them.
fn all_orders() -> Vec<Order> {
    let of_bucket = |bucket| State::ALL.into_iter().map(move |state| state_order(bucket, state));
    Bucket::all().flat_map(of_bucket).collect()
}

fn history_orders() -> Vec<Order> {
    Bucket::all().map(|bucket| Order { bucket, key: bucket.histories(), state: 0 }).collect()
}

/// Name of the store's kind.
const NAME: &str = "redis";

/// Name of a commit in errors.
const OP: &str = "commit a change";

/// Scripts with many changes that are on their way at a time: while the server runs one, the next one is made.
const LANES: usize = 2;

/// Name of the setting that has the format of the records and the number of buckets.
const LAYOUT: &str = "redis layout";

/// Name of the setting that has the random id of the store, and of the field that has the id of another bucket's data.
const STORE_ID: &str = "redis store";

/// Number of the format of records and of the keys around them.
const FORMAT: u32 = 1;

/// Changes that are on their way at a time. Past them the server, which runs one script at a time, is a tenth of a second
/// behind.
const CHANGES_MAX: usize = 4096;

/// Largest bodies of one change. They take three of the five seconds that a caller waits for a reply on a network of 100 Mbit/s, and
/// every other reply on the connection waits behind them.
const CHANGE_BYTES_MAX: usize = 32 << 20;

/// Longest wait for one renewal. Past it that lease counts as busy and is tried again, while the others of the call are renewed:
/// the engine waits for the whole call, for a sixth of the shortest lease, which is 3 seconds here.
const RENEW_WITHIN: Duration = Duration::from_millis(500);

/// Time between two inspections: a server that became weaker may lose what it confirmed meanwhile.
const INSPECT_EVERY: Duration = Duration::from_secs(60);

/// Largest value of a setting that a full server still takes. A node that cannot write a setting is not ready, and its orchestrator
/// would send no request to it: not even a retry of a key that is stored. All settings of this size together take some kilobytes.
const SMALL_SETTING_MAX: usize = 4 << 10;

/// Lines of history that one script removes: a script must be short, because the server runs nothing else meanwhile.
const LINES_MAX: u32 = 1000;
