//! One server of the store: the connection to it, and its last inspection.
//!
//! [`super::nodes`] chooses the server of a script. This module connects, checks what the server may be trusted with, and
//! sends commands.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisError, Value};
use tokio::time::Instant;

use super::error::Failure;
use super::open::{self, Inspection, RedisOpenError};
use super::script::Script;
use crate::redis_target::RedisTarget;

/// One server, and the connection to it.
pub(super) struct Node {
    pub(super) address: String,
    pub(super) connection: Mutex<Option<NumberedConnection>>,
    /// Held while a connection is made. It has the instant of the last failure.
    pub(super) connecting: tokio::sync::Mutex<Option<Instant>>,
    pub(super) trust: Mutex<Trust>,
}

/// The last inspection of a server, as far as calls depend on it.
#[derive(Clone, Default)]
pub(super) struct Trust {
    /// Reason why it may lose what it has confirmed.
    pub(super) weakness: Option<String>,
    /// Reason why nothing may begin there: it is weaker than the options accept, or has not the data of this store.
    pub(super) refusal: Option<String>,
    /// Longest argument of a script that it takes.
    argument_max: Option<usize>,
    /// `true` if its append-only file was off, or is not complete since.
    lacks_file: bool,
    /// Its clock, if it was read.
    pub(super) clock: Option<ServerClockReading>,
}

/// Distance of a server's clock from this process's monotonic one, in microseconds, give or take `within_us`.
#[derive(Clone, Copy)]
pub(super) struct ServerClockReading {
    pub(super) offset_us: i64,
    pub(super) within_us: i64,
}

/// A connection and its number, so that a failure of an earlier one does not end it.
#[derive(Clone)]
pub(super) struct NumberedConnection {
    pub(super) number: u64,
    pub(super) connection: MultiplexedConnection,
}

impl Node {
    pub(super) fn new(address: String) -> Node {
        Node {
            address,
            connection: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            trust: Mutex::default(),
        }
    }

    /// Notes what an inspection found, and logs when the server becomes too weak or is as before.
    pub(super) fn note(&self, target: &RedisTarget, mut inspection: Inspection) {
        // With `CONFIG SET appendonly yes` the server writes everything into a new file first, and starts without that file if it
        // dies meanwhile. T1 begins; the server dies; T2 retries the key, finds nothing, and runs again.
        if inspection.is_rewriting && inspection.has_whole_file() && self.trust.lock().lacks_file {
            inspection.doubt_file();
        }
        let refusal =
            open::check_trusted(target, &self.address, &inspection).err().map(|error| error.to_string());
        let lost_data =
            inspection.lost_data.as_ref().map(|why| format!("Redis at `{}`: {why}", self.address));
        let trust = Trust {
            weakness: inspection.weakness(),
            refusal: lost_data.or(refusal),
            argument_max: inspection.argument_max(),
            lacks_file: !inspection.has_whole_file(),
            clock: inspection.clock.map(|clock| ServerClockReading::of(clock, inspection.now_us)),
        };
        let before = std::mem::replace(&mut *self.trust.lock(), trust.clone());
        match (before.refusal, trust.refusal) {
            (None, Some(reason)) if inspection.lost_data.is_some() => {
                tracing::error!(
                    reason,
                    "Redis lacks the data of this store: nothing begins, attempts still end"
                );
            }
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

    /// Refuses a script that begins attempts on a server which may not be trusted with them, and one with an argument that is
    /// too long. A server closes the connection at such an argument, and every call on it would fail.
    pub(super) fn check_script(&self, script: &Script, arguments: &[&[u8]]) -> Result<(), Failure> {
        let trust = self.trust.lock();
        if let Some(max) = trust.argument_max
            && arguments.iter().any(|argument| argument.len() > max)
        {
            return Err(Failure::TooLarge(
                format!("a part of it is longer than the {max} bytes that the server's settings allow")
                    .into(),
            ));
        }
        match &trust.refusal {
            Some(reason) if script.begins => Err(Failure::Refused(reason.clone().into())),
            _ => Ok(()),
        }
    }

    pub(super) fn use_connection(&self, connection: MultiplexedConnection) -> NumberedConnection {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let numbered = NumberedConnection { number: NEXT.fetch_add(1, Ordering::Relaxed), connection };
        *self.connection.lock() = Some(numbered.clone());
        numbered
    }

    /// Connects, and checks the server: after a restart or a failover it may be another one, with other settings.
    pub(super) async fn connect(
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
    pub(super) fn address_of(&self, named: &str) -> String {
        match named.strip_prefix(':') {
            Some(port) => match self.address.rsplit_once(':') {
                Some((host, _)) => format!("{host}:{port}"),
                None => named.to_owned(),
            },
            None => named.to_owned(),
        }
    }
}

impl ServerClockReading {
    /// Compares a server's time with the instants between which it was read.
    fn of((asked, answered): (Instant, Instant), server_us: i64) -> ServerClockReading {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        let start = *START;
        let micros = |at: Instant| {
            let since = at.saturating_duration_since(start).as_micros();
            let before = start.saturating_duration_since(at).as_micros();
            i64::try_from(since).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX)
        };
        let (asked, answered) = (micros(asked), micros(answered));
        let middle = asked + (answered - asked) / 2;
        ServerClockReading {
            offset_us: server_us.saturating_sub(middle),
            within_us: (answered - asked) / 2 + 1,
        }
    }
}

/// Sends one command, after `ASKING` while its slot moves to this server.
pub(super) async fn send(
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

/// A connection on a healthy network takes milliseconds.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest wait for a reply. A flush to a slow disk takes a second; after five the server or the network hangs, and the
/// caller learns more by sending the change again on another connection.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
