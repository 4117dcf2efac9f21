//! The servers of the store, and the way of a script to the one that owns its bucket.
//!
//! A single server is a cluster of one. Nothing is sent twice after a broken connection: only a reply which proves that the
//! script did not run leads to another send. The driver's own cluster client resends after I/O errors, and without retries it
//! follows no redirect, so it is not used.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisError, Value};
use tokio::time::{Instant, sleep};

use super::failure::{Failure, Reaction};
use super::key::Bucket;
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
    /// Instant of the last log line about buckets that can't be reached.
    logged_at: Mutex<Option<Instant>>,
}

/// One server, and the connection to it.
struct Node {
    address: String,
    connection: Mutex<Option<NumberedConnection>>,
    /// Held while a connection is made. It has the instant of the last failure.
    connecting: tokio::sync::Mutex<Option<Instant>>,
    trust: Mutex<Trust>,
}

/// The last inspection of a server, as far as it concerns durability.
#[derive(Clone, Default)]
struct Trust {
    /// Reason why it may lose what it has confirmed.
    weakness: Option<String>,
    /// Reason why nothing may begin there: it is weaker than the options accept.
    refusal: Option<String>,
}

/// A connection and its number, so that a failure of an earlier one does not end it.
#[derive(Clone)]
struct NumberedConnection {
    number: u64,
    connection: MultiplexedConnection,
}

impl Nodes {
    /// Connects to the first server that answers, learns from it which server owns which bucket, and checks the owners.
    pub(super) async fn open(target: RedisTarget) -> Result<(Nodes, Inspection), RedisOpenError> {
        let mut failure = RedisOpenError::BadUrl { why: "it names no server".to_owned() };
        let addresses: Vec<String> = target.addresses().map(str::to_owned).collect();
        for address in &addresses {
            let node = Arc::new(Node::new(address.clone()));
            let (connection, found) = match node.connect(&target).await {
                Ok(connected) => connected,
                Err(error) => {
                    failure = error;
                    continue;
                }
            };
            if addresses.len() > 1 && !found.is_cluster {
                return Err(RedisOpenError::SeveralServers { address: address.clone() });
            }
            node.use_connection(connection);
            let nodes = Nodes {
                target,
                nodes: Mutex::new(HashMap::from([(address.clone(), node.clone())])),
                owners: RwLock::new(vec![node; Bucket::COUNT]),
                is_cluster: found.is_cluster,
                logged_at: Mutex::default(),
            };
            if nodes.is_cluster {
                nodes.check_membership(&addresses).await?;
                nodes.refresh(None).await;
            }
            nodes.check_owners().await?;
            return Ok((nodes, found));
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
            node.note(&self.target, &inspection);
        }
        Ok(())
    }

    /// Inspects all owners again: settings change at run time, and replicas come and go.
    pub(super) async fn inspect_again(&self) {
        for node in self.distinct_owners() {
            // A server that has no connection is inspected when it gets one.
            let connected = node.connection.lock().clone();
            let Some(NumberedConnection { connection, .. }) = connected else { continue };
            match open::inspect(&self.target, &node.address, connection).await {
                Ok(found) => node.note(&self.target, &found),
                Err(error) => tracing::debug!(error = &error as &dyn std::error::Error, "no inspection"),
            }
        }
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
            if script.begins
                && let Some(reason) = node.trust.lock().refusal.clone()
            {
                return Err(Failure::Refused(reason.into()));
            }
            let error = match send(connection, &command, is_asking).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if error.code().is_none() {
                // The next call makes another connection; calls that are in flight keep this one.
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
        match node.connect(&self.target).await {
            Ok((connection, found)) => {
                *failed_at = None;
                node.note(&self.target, &found);
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
    async fn refresh_without(&self, lost: &Node) {
        if self.is_cluster {
            self.refresh(Some(lost)).await;
        }
    }

    /// Asks one server after the other, but not the lost one, for the owners of all slots, until one answers.
    async fn refresh(&self, lost: Option<&Node>) {
        let known: Vec<Arc<Node>> = self.nodes.lock().values().cloned().collect();
        for node in known.iter().filter(|node| lost.is_none_or(|lost| lost.address != node.address)) {
            let Ok(NumberedConnection { connection, .. }) = self.connection(node).await else { continue };
            let mut slots = Cmd::new();
            slots.arg("CLUSTER").arg("SLOTS");
            let Ok(reply) = send(connection, &slots, false).await else { continue };
            let ranges: Vec<(u16, u16, String)> = parse_slots(&reply, &node.address);
            let mut owners: Vec<Option<Arc<Node>>> = vec![None; Bucket::COUNT];
            for bucket in Bucket::all().chain([Bucket::SETTINGS]) {
                let slot = bucket.slot();
                let range = ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
                owners[bucket.index()] = range.map(|(_, _, address)| self.node(address.clone()));
            }
            for (owner, found) in self.owners.write().iter_mut().zip(owners) {
                // A slot without an owner keeps the last one, which refuses for now.
                *owner = found.unwrap_or_else(|| owner.clone());
            }
            return;
        }
    }
}

impl Node {
    fn new(address: String) -> Node {
        Node {
            address,
            connection: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            trust: Mutex::default(),
        }
    }

    /// Notes what an inspection found, and logs when the server becomes too weak or is as before.
    fn note(&self, target: &RedisTarget, found: &Inspection) {
        let refusal = open::check_trusted(target, &self.address, found).err().map(|error| error.to_string());
        let trust = Trust { weakness: found.weakness(), refusal };
        let before = std::mem::replace(&mut *self.trust.lock(), trust.clone());
        match (before.refusal, trust.refusal) {
            (None, Some(reason)) => {
                tracing::error!(
                    reason,
                    "Redis is weaker than the URL accepts: nothing begins, attempts still end"
                );
            }
            (Some(_), None) => {
                tracing::info!(server = self.address, "Redis is durable enough again: attempts begin");
            }
            _ => {}
        }
    }

    fn use_connection(&self, connection: MultiplexedConnection) -> NumberedConnection {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let numbered = NumberedConnection { number: NEXT.fetch_add(1, Ordering::Relaxed), connection };
        *self.connection.lock() = Some(numbered.clone());
        numbered
    }

    /// Connects, and checks the server: after a restart or a failover it may be another one, with other settings.
    async fn connect(
        &self,
        target: &RedisTarget,
    ) -> Result<(MultiplexedConnection, Inspection), RedisOpenError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        let client = target.client(&self.address)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connection.map_err(|error| open::open_error(target, &self.address, error))?;
        let inspection = open::inspect(target, &self.address, connection.clone()).await?;
        open::check_usable(target, &self.address, &inspection)?;
        Ok((connection, inspection))
    }

    /// Returns the address that this server names. One without a host is on this server's own.
    fn address_of(&self, named: &str) -> String {
        match named.strip_prefix(':') {
            Some(port) => match self.address.rsplit_once(':') {
                Some((host, _)) => format!("{host}:{port}"),
                None => named.to_owned(),
            },
            None => named.to_owned(),
        }
    }
}

async fn send(
    mut connection: MultiplexedConnection,
    command: &Cmd,
    is_asking: bool,
) -> Result<Value, RedisError> {
    if !is_asking {
        return connection.send_packed_command(command).await?.extract_error();
    }
    // Both go out in one piece, so no other command comes between them.
    let mut pipeline = redis::pipe();
    pipeline.cmd("ASKING").ignore().add_command(command.clone());
    let mut replies = connection.send_packed_commands(&pipeline, 1, 1).await.map_err(single_error)?;
    replies.pop().unwrap_or_default().extract_error()
}

/// Returns the server's error of the one command in a pipeline.
fn single_error(error: RedisError) -> RedisError {
    let errors = error.clone().into_server_errors();
    errors.and_then(|errors| errors.first().map(|(_, error)| error.clone().into())).unwrap_or(error)
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

/// Reads the reply of `CLUSTER SLOTS`: first and last slot, and the address of the primary.
fn parse_slots(reply: &Value, asked: &str) -> Vec<(u16, u16, String)> {
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

/// A connection on a healthy network takes milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest wait for a reply. A flush to a slow disk takes a second; after five the server or the network hangs, and the
/// caller learns more by sending the change again on another connection.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Shortest time between two log lines about buckets that can't be reached. Upkeep looks every second.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Time after a failed connection in which no other is tried: callers that queued behind it would add up its timeout.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// Longest wait for a slot that moves, where the caller sets no limit. A small slot moves in milliseconds, and the caller
/// retries.
const MOVE_WAIT_MAX: Duration = Duration::from_secs(2);

/// First pause while a slot moves: about the time in which ten keys do.
const MOVE_PAUSE_MIN: Duration = Duration::from_millis(2);

/// Longest pause while a slot moves.
const MOVE_PAUSE_MAX: Duration = Duration::from_millis(100);
