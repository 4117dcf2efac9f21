//! The servers of the store, and the way of a script to the one that owns its bucket.
//!
//! A single server is a cluster of one. Nothing is sent twice after a broken connection: only a reply which proves that the
//! script did not run leads to another send. The driver's own cluster client resends after I/O errors, and without retries it
//! follows no redirect, so it is not used.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::{Mutex, RwLock};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::time::{Instant, sleep};

use super::data_ids::DataIds;
use super::error::{Failure, Reaction, is_demoted};
use super::key::Bucket;
use super::node::{Node, NumberedConnection, ServerClockReading, send};
use super::open::{self, Inspection, RedisOpenError};
use super::reply;
use super::script::Script;
use crate::backoff::Backoff;
use crate::redis_target::RedisTarget;

/// All servers that are known.
pub(super) struct Nodes {
    target: RedisTarget,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    /// The server of each bucket, by [`Bucket::index`].
    owners: RwLock<Vec<Arc<Node>>>,
    is_cluster: bool,
    data_ids: DataIds,
    /// Held while the owners of all slots are asked for. It has the instant of the last time.
    refreshing: tokio::sync::Mutex<Option<Instant>>,
    /// Instant of the last log line about buckets that can't be reached.
    logged_at: Mutex<Option<Instant>>,
}

impl Nodes {
    /// Connects to the first server that answers, learns from it which server owns which bucket, and checks the owners.
    pub(super) async fn open(target: RedisTarget) -> Result<(Nodes, Inspection), RedisOpenError> {
        let mut failure = RedisOpenError::BadUrl { why: "it names no server".to_owned() };
        let addresses: Vec<String> = target.addresses().map(str::to_owned).collect();
        for address in &addresses {
            let node = Arc::new(Node::new(address.clone()));
            let (connection, inspection) = match node.connect(&target).await {
                Ok(connected) => connected,
                Err(error) => {
                    failure = error;
                    continue;
                }
            };
            if addresses.len() > 1 && !inspection.is_cluster {
                return Err(RedisOpenError::SeveralServers { address: address.clone() });
            }
            node.use_connection(connection);
            let nodes = Nodes {
                target,
                nodes: Mutex::new(HashMap::from([(address.clone(), node.clone())])),
                owners: RwLock::new(vec![node; Bucket::COUNT]),
                is_cluster: inspection.is_cluster,
                data_ids: DataIds::new(),
                refreshing: tokio::sync::Mutex::default(),
                logged_at: Mutex::default(),
            };
            if nodes.is_cluster {
                nodes.check_membership(&addresses).await?;
                nodes.refresh(None).await;
            }
            nodes.check_owners().await?;
            return Ok((nodes, inspection));
        }
        Err(failure)
    }

    /// Refuses a URL that names servers of several clusters: after a restart another one might answer first.
    async fn check_membership(&self, addresses: &[String]) -> Result<(), RedisOpenError> {
        let mut members: Option<String> = None;
        for address in addresses {
            // One that is away is no reason not to start.
            let Ok(NumberedConnection { connection, .. }) =
                self.connection(&self.node(address.clone())).await
            else {
                continue;
            };
            let ask = async |word: &str| {
                let mut command = Cmd::new();
                command.arg("CLUSTER").arg(word);
                let reply = send(connection.clone(), &command, false).await;
                let reply = reply.map_err(|error| open::open_error(&self.target, address, error))?;
                Ok::<_, RedisOpenError>(
                    reply::bytes(&reply).map(|text| String::from_utf8_lossy(text).into_owned()),
                )
            };
            let id = ask("MYID").await?.unwrap_or_default();
            match &members {
                None => members = ask("NODES").await?,
                Some(members) if members.lines().any(|line| line.starts_with(&id)) => {}
                Some(_) => return Err(RedisOpenError::SeveralServers { address: address.clone() }),
            }
        }
        Ok(())
    }

    /// Refuses owners that keep records less surely than the options accept. One that is away is checked once it is back.
    async fn check_owners(&self) -> Result<(), RedisOpenError> {
        for node in self.distinct_owners() {
            let Ok(NumberedConnection { connection, .. }) = self.connection(&node).await else {
                tracing::warn!(server = node.address, "a server of the cluster is away and was not checked");
                continue;
            };
            let inspection = open::inspect(&self.target, &node.address, connection).await?;
            open::check_trusted(&self.target, &node.address, &inspection)?;
            node.note(&self.target, inspection);
        }
        self.warn_of_clocks();
        Ok(())
    }

    /// Remembers the id of the store, and reads those of its buckets. From now on nothing begins on a server that lacks them.
    pub(super) async fn watch_data(&self, id: &[u8]) {
        // Opening calls this once.
        self.data_ids.set_store_id(id);
        for node in self.distinct_owners() {
            let connected = node.connection.lock().clone();
            let Some(NumberedConnection { connection, .. }) = connected else { continue };
            if let Err(error) = self.find_lost_data(&node, &connection).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(server = node.address, error, "the data of a server is not watched yet");
            }
        }
    }

    /// Returns why the data of a server is not that of this store; `None` if it is, or if the server can't show it.
    async fn find_lost_data(
        &self,
        node: &Node,
        connection: &MultiplexedConnection,
    ) -> Result<Option<String>, RedisError> {
        let buckets = match self.is_cluster {
            true => self.buckets_of(node),
            false => vec![Bucket::SETTINGS],
        };
        self.data_ids.find_lost_data(connection, buckets).await
    }

    fn buckets_of(&self, node: &Node) -> Vec<Bucket> {
        let owners = self.owners.read();
        let is_here = |bucket: &Bucket| owners[bucket.index()].address == node.address;
        Bucket::all().chain([Bucket::SETTINGS]).filter(is_here).collect()
    }

    /// Returns by how much the clocks of the servers differ at least.
    pub(super) fn clocks_apart(&self) -> Duration {
        let clocks: Vec<ServerClockReading> =
            self.distinct_owners().iter().filter_map(|node| node.trust.lock().clock).collect();
        let latest = clocks.iter().map(|clock| clock.offset_us.saturating_sub(clock.within_us)).max();
        let earliest = clocks.iter().map(|clock| clock.offset_us.saturating_add(clock.within_us)).min();
        let apart = latest.unwrap_or(0).saturating_sub(earliest.unwrap_or(0));
        Duration::from_micros(u64::try_from(apart).unwrap_or(0))
    }

    /// Logs that the clocks of the servers differ by more than [`CLOCKS_APART_MAX`].
    fn warn_of_clocks(&self) {
        let apart = self.clocks_apart();
        if apart > CLOCKS_APART_MAX {
            tracing::warn!(
                apart_ms = apart.as_millis(),
                "the clocks of the cluster's servers differ: run a time service on each, or no lapsed key is taken over"
            );
        }
    }

    /// Inspects all owners again: settings change at run time, and replicas come and go.
    pub(super) async fn inspect_again(&self) {
        for node in self.distinct_owners() {
            // A server that has no connection is inspected when it gets one.
            let connected = node.connection.lock().clone();
            let Some(NumberedConnection { connection, .. }) = connected else { continue };
            match self.inspect(&node, connection).await {
                Ok(inspection) => node.note(&self.target, inspection),
                Err(error) => tracing::debug!(error = &error as &dyn std::error::Error, "no inspection"),
            }
        }
        self.warn_of_clocks();
    }

    /// Asks a server for its settings, and for the data of this store.
    async fn inspect(
        &self,
        node: &Node,
        connection: MultiplexedConnection,
    ) -> Result<Inspection, RedisOpenError> {
        let mut inspection = open::inspect(&self.target, &node.address, connection.clone()).await?;
        let lost_data = self.find_lost_data(node, &connection).await;
        inspection.lost_data =
            lost_data.map_err(|error| open::open_error(&self.target, &node.address, error))?;
        Ok(inspection)
    }

    /// Returns the reason why a confirmed record may be lost; `None` if none may.
    pub(super) fn weakness(&self) -> Option<String> {
        let trust = |node: Arc<Node>| node.trust.lock().clone();
        self.distinct_owners().into_iter().map(trust).find_map(|trust| trust.refusal.or(trust.weakness))
    }

    /// Returns the reason why nothing may begin in a bucket: its server became weaker than the options accept.
    pub(super) fn refusal(&self, bucket: Bucket) -> Option<String> {
        self.owners.read()[bucket.index()].trust.lock().refusal.clone()
    }

    /// Returns each server that owns a bucket once.
    fn distinct_owners(&self) -> Vec<Arc<Node>> {
        if !self.is_cluster {
            return vec![self.owners.read()[Bucket::SETTINGS.index()].clone()];
        }
        let mut owners = self.owners.read().clone();
        owners.sort_by(|one, other| one.address.cmp(&other.address));
        owners.dedup_by(|one, other| one.address == other.address);
        owners
    }

    /// Returns what succeeded of calls to several buckets, and logs the rest. Fails if none succeeded.
    ///
    /// A server that is away must not stop upkeep for the records of the others.
    pub(super) fn reachable<T>(&self, results: Vec<Result<T, Failure>>) -> Result<Vec<T>, Failure> {
        let (mut reached, mut failure, calls) = (Vec::with_capacity(results.len()), None, results.len());
        for result in results {
            match result {
                Ok(value) => reached.push(value),
                Err(error) => failure = Some(error),
            }
        }
        let Some(failure) = failure else { return Ok(reached) };
        if reached.is_empty() {
            return Err(failure);
        }
        let mut logged_at = self.logged_at.lock();
        if logged_at.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            *logged_at = Some(Instant::now());
            let (failed, error) = (calls - reached.len(), failure.source());
            tracing::error!(failed, calls, error, "part of the store can't be reached and is passed over");
        }
        Ok(reached)
    }

    /// Returns whether the keys of one script must be in one slot.
    pub(super) fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    /// Runs a script where its bucket is, unless it cannot be sent until `send_by`.
    ///
    /// In a cluster all keys are in the bucket.
    pub(super) async fn run(
        &self,
        script: &Script,
        bucket: Bucket,
        keys: &[Vec<u8>],
        arguments: &[&[u8]],
        send_by: Option<Instant>,
    ) -> Result<Value, Failure> {
        self.run_on(None, script, bucket, keys, arguments, send_by).await
    }

    /// Runs a script like [`Self::run`], unless the connection is another one than that with a number.
    pub(super) async fn run_on(
        &self,
        on: Option<u64>,
        script: &Script,
        bucket: Bucket,
        keys: &[Vec<u8>],
        arguments: &[&[u8]],
        send_by: Option<Instant>,
    ) -> Result<Value, Failure> {
        let send_by = send_by.unwrap_or_else(|| Instant::now() + MOVE_WAIT_MAX);
        let mut backoff = Backoff::new(MOVE_PAUSE_MIN, MOVE_PAUSE_MAX);
        let (mut command, mut ask) = (command("EVALSHA", &script.digest, keys, arguments), None);
        loop {
            let owner = self.owners.read()[bucket.index()].clone();
            let (node, is_asking) = match ask.take() {
                Some(address) => (self.node(address), true),
                None => (owner, false),
            };
            let NumberedConnection { number, connection } = match self.connection(&node).await {
                Ok(numbered) => numbered,
                Err(failure) => {
                    self.refresh_without(&node).await;
                    return Err(failure);
                }
            };
            if on.is_some_and(|on| on != number) {
                return Err(Failure::unsent("the connection is another one by now"));
            }
            if Instant::now() > send_by {
                return Err(Failure::unsent("it could not be sent in time"));
            }
            // Judged by the server that gets the script, once there is a connection: a new one may have shown that it is weaker.
            node.check_script(script, arguments)?;
            let error = match send(connection, &command, is_asking).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if error.code().is_none() || is_demoted(&error) {
                // The next call makes another connection; calls that are in flight keep this one. A server that became a replica
                // keeps its connections open, while the name in the URL may lead to the promoted one already.
                node.connection.lock().take_if(|current| current.number == number);
            }
            match Reaction::to(error) {
                Reaction::SendText => {
                    command = self::command("EVAL", script.text, keys, arguments);
                    // The server that lacks it is the one to send the text to.
                    ask = is_asking.then(|| node.address.clone());
                }
                Reaction::Follow(address) => {
                    let address = node.address_of(&address);
                    self.owners.write()[bucket.index()] = self.node(address);
                }
                Reaction::Ask(address) => ask = Some(node.address_of(&address)),
                Reaction::Wait => sleep(backoff.next()).await,
                Reaction::Fail(failure) => return Err(failure),
            }
        }
    }

    /// Returns the number of the connection to a single server, if there is one.
    pub(super) fn connection_number(&self) -> Option<u64> {
        let owner = self.owners.read()[Bucket::SETTINGS.index()].clone();
        owner.connection.lock().as_ref().map(|numbered| numbered.number).filter(|_| !self.is_cluster)
    }

    async fn connection(&self, node: &Node) -> Result<NumberedConnection, Failure> {
        if let Some(numbered) = &*node.connection.lock() {
            return Ok(numbered.clone());
        }
        // Callers that waited for a connection which failed fail with it, instead of trying one after the other.
        let mut failed_at = node.connecting.lock().await;
        if let Some(numbered) = &*node.connection.lock() {
            return Ok(numbered.clone());
        }
        if failed_at.is_some_and(|at| at.elapsed() < RECONNECT_PAUSE) {
            return Err(Failure::unsent("the server did not take a connection just now"));
        }
        let connected = async {
            let (connection, mut inspection) = node.connect(&self.target).await?;
            let lost_data = self.find_lost_data(node, &connection).await;
            inspection.lost_data =
                lost_data.map_err(|error| open::open_error(&self.target, &node.address, error))?;
            Ok::<_, RedisOpenError>((connection, inspection))
        };
        match connected.await {
            Ok((connection, inspection)) => {
                *failed_at = None;
                node.note(&self.target, inspection);
                Ok(node.use_connection(connection))
            }
            Err(error) => {
                *failed_at = Some(Instant::now());
                Err(Failure::unsent(error))
            }
        }
    }

    fn node(&self, address: String) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        nodes.entry(address).or_insert_with_key(|address| Arc::new(Node::new(address.clone()))).clone()
    }

    /// Learns from another server who owns the buckets of one that cannot be reached: a replica of it may have taken over.
    ///
    /// One call at a time asks, and at most one each [`REFRESH_PAUSE`]: the others fail at once, and their callers retry.
    async fn refresh_without(&self, lost: &Node) {
        if !self.is_cluster {
            return;
        }
        let Ok(mut refreshed_at) = self.refreshing.try_lock() else { return };
        if refreshed_at.is_some_and(|at| at.elapsed() < REFRESH_PAUSE) {
            return;
        }
        self.refresh(Some(lost)).await;
        *refreshed_at = Some(Instant::now());
    }

    /// Asks servers, but not the lost one, for the owners of all slots, until one answers: first the present owners, then the
    /// servers of the URL. Forgets every other server.
    ///
    /// Some are asked at a time, because one that is away takes its whole time limit.
    async fn refresh(&self, lost: Option<&Node>) {
        let mut candidates = self.distinct_owners();
        for address in self.target.addresses() {
            if candidates.iter().all(|known| known.address != address) {
                candidates.push(self.node(address.to_owned()));
            }
        }
        candidates.retain(|node| lost.is_none_or(|lost| lost.address != node.address));
        for some in candidates.chunks(REFRESH_AT_ONCE) {
            let mut asked: FuturesUnordered<_> = some.iter().map(|node| self.ask_for_slots(node)).collect();
            while let Some(ranges) = asked.next().await {
                if let Some(ranges) = ranges {
                    return self.use_slots(&ranges);
                }
            }
        }
    }

    /// Asks one server for the owners of all slots.
    async fn ask_for_slots(&self, node: &Node) -> Option<Vec<SlotRange>> {
        let NumberedConnection { connection, .. } = self.connection(node).await.ok()?;
        let mut slots = Cmd::new();
        slots.arg("CLUSTER").arg("SLOTS");
        let reply = send(connection, &slots, false).await.ok()?;
        Some(parse_slots(&reply, &node.address))
    }

    /// Sets the owners, and forgets servers that are neither owners nor in the URL.
    fn use_slots(&self, ranges: &[SlotRange]) {
        let mut owners: Vec<Option<Arc<Node>>> = vec![None; Bucket::COUNT];
        for bucket in Bucket::all().chain([Bucket::SETTINGS]) {
            let slot = bucket.slot();
            let range = ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
            owners[bucket.index()] = range.map(|(_, _, address)| self.node(address.clone()));
        }
        for (owner, new_owner) in self.owners.write().iter_mut().zip(owners) {
            // A slot without an owner keeps the last one, which refuses for now.
            *owner = new_owner.unwrap_or_else(|| owner.clone());
        }
        let owners = self.distinct_owners();
        self.nodes.lock().retain(|address, _| {
            owners.iter().any(|owner| owner.address == *address)
                || self.target.addresses().any(|named| named == address)
        });
    }
}

fn command(name: &str, script: &str, keys: &[Vec<u8>], arguments: &[&[u8]]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(name).arg(script).arg(keys.len());
    for key in keys {
        command.arg(&key[..]);
    }
    for argument in arguments {
        command.arg(*argument);
    }
    command
}

/// First and last slot of a range, and the address of its primary.
type SlotRange = (u16, u16, String);

/// Reads the reply of `CLUSTER SLOTS`.
fn parse_slots(reply: &Value, asked: &str) -> Vec<SlotRange> {
    let Value::Array(ranges) = reply else { return Vec::new() };
    let host_asked = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
    let range = |range: &Value| {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &parts[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &primary[..] else { return None };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() => String::from_utf8_lossy(host).into_owned(),
            _ => host_asked.to_owned(),
        };
        Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, format!("{host}:{port}")))
    };
    ranges.iter().filter_map(range).collect()
}

/// Shortest time between two log lines about buckets that can't be reached. Upkeep looks every second.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Time after a failed connection in which no other is tried: callers that queued behind it would add up its timeout.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// Shortest time between two questions for the owners of all slots. A failover takes longer, and a hundred calls that fail together
/// need one answer.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);

/// Servers that are asked for the owners at a time. One that is away takes [`super::node::CONNECT_TIMEOUT`], and most are
/// not.
const REFRESH_AT_ONCE: usize = 3;

/// Largest difference between the clocks of a cluster's servers that is not logged. A time service keeps them within some
/// milliseconds, and the engine takes a second for a jump of the clock.
pub(super) const CLOCKS_APART_MAX: Duration = Duration::from_millis(200);

/// Longest wait for a slot that moves, where the caller sets no limit. A small slot moves in milliseconds, and the caller
/// retries.
const MOVE_WAIT_MAX: Duration = Duration::from_secs(2);

/// First pause while a slot moves: about the time in which ten keys do.
const MOVE_PAUSE_MIN: Duration = Duration::from_millis(2);

/// Longest pause while a slot moves.
const MOVE_PAUSE_MAX: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use ibid_testkit::redis::{Redis, RedisCluster};

    use super::*;
    use crate::store::redis::script;

    async fn open_nodes(cluster: &RedisCluster) -> Nodes {
        let url = format!("{}?durability=weak", cluster.url());
        Nodes::open(RedisTarget::parse(&url).expect("a URL")).await.expect("it opens").0
    }

    /// Returns how often a server was asked for the owners of all slots.
    fn questions(server: &Redis) -> u64 {
        let stats = server.info("cmdstat_cluster|slots");
        let calls = stats.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn calls_that_fail_together_ask_once_for_the_owners() {
        let mut cluster = RedisCluster::start();
        let nodes = open_nodes(&cluster).await;
        // Servers that left the cluster long ago.
        for port in 1..=100 {
            nodes.node(format!("127.0.0.1:{port}"));
        }
        let address = cluster.node(0).url().replace("redis://", "");
        let is_lost = |bucket: &Bucket| nodes.owners.read()[bucket.index()].address == address;
        let bucket = Bucket::all().find(is_lost).expect("it owns a third");
        let before = questions(cluster.node(1)) + questions(cluster.node(2));
        cluster.node(0).kill();
        let started = Instant::now();
        for _ in 0..3 {
            let key = [bucket.order(ibid_core::record::State::Completed)];
            let call = || nodes.run(&script::LOAD, bucket, &key, &[], None);
            for outcome in join_all((0..200).map(|_| call())).await {
                outcome.expect_err("its server is gone");
            }
        }
        let rounds = 1 + started.elapsed().as_millis() as u64 / REFRESH_PAUSE.as_millis() as u64;
        let asked = questions(cluster.node(1)) + questions(cluster.node(2)) - before;
        assert!(asked > 0 && asked <= 2 * rounds, "{asked} questions in {rounds} pauses");
        assert_eq!(nodes.nodes.lock().len(), 3, "servers that left are forgotten");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn clocks_that_differ_are_compared_with_each_other() {
        let cluster = RedisCluster::start();
        let nodes = open_nodes(&cluster).await;
        assert!(nodes.clocks_apart() < CLOCKS_APART_MAX, "all run on one machine");
        let owner = nodes.owners.read()[Bucket::SETTINGS.index()].clone();
        for step in [1_000_000, -2_000_000] {
            owner.trust.lock().clock.as_mut().expect("it was read").offset_us += step;
            let apart = nodes.clocks_apart();
            assert!(apart > Duration::from_millis(800) && apart < Duration::from_millis(1_200), "{apart:?}");
        }
    }
}
