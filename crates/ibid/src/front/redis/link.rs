//! A connection to the server: made again after it broke, and left alone while the server is away.

use std::sync::Arc;
use std::time::Duration;

use metrics::gauge;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError};
use tokio::time::{Instant, timeout};

/// A connection that never makes its caller wait for a server that is away.
#[derive(Clone)]
pub(super) struct Link(Arc<LinkParts>);

struct LinkParts {
    client: Client,
    timeout: Duration,
    /// Name of the gauge that says whether the last call succeeded, if this link has one.
    gauge: Option<&'static str>,
    outages: Arc<OutageLog>,
    state: Mutex<LinkState>,
}

/// The log lines about outages, of all links to one server.
#[derive(Default)]
pub(super) struct OutageLog {
    /// Instant of the last line about an outage that lasts.
    logged_at: Mutex<Option<Instant>>,
}

struct LinkState {
    connection: Option<MultiplexedConnection>,
    /// Number of the last connection, so that an error of an earlier one does not end it.
    number: u64,
    /// Before this instant no new connection is tried.
    retry_at: Instant,
    /// Replies on this connection that were late one after the other.
    late: u32,
    /// `true` if the last call succeeded; `None` before the first one.
    is_up: Option<bool>,
}

impl Link {
    /// Connects, and waits for that. Each call gets its reply within `timeout`.
    pub(super) async fn start(
        client: Client,
        timeout: Duration,
        gauge: Option<&'static str>,
        outages: Arc<OutageLog>,
    ) -> Link {
        let state = LinkState { connection: None, number: 0, retry_at: Instant::now(), late: 0, is_up: None };
        let link = Link(Arc::new(LinkParts { client, timeout, gauge, outages, state: Mutex::new(state) }));
        link.connect().await;
        link
    }

    /// Makes one call and returns its reply; `None` if the server is away, late or refuses.
    pub(super) async fn ask<T>(
        &self,
        call: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
    ) -> Option<T> {
        let (number, mut connection) = self.connection()?;
        match timeout(self.0.timeout, call(&mut connection)).await {
            Ok(Ok(reply)) => {
                let mut state = self.0.state.lock();
                if state.number == number {
                    state.late = 0;
                }
                self.set_up(&mut state, true);
                Some(reply)
            }
            // A server that became a replica keeps its connections, while the name in the URL may lead to another one already.
            Ok(Err(error)) if is_demoted(&error) => {
                self.lose(number, &error, PAUSE);
                None
            }
            // The server lives and can't do it now: out of memory, loading.
            Ok(Err(error)) if !error.is_unrecoverable_error() && !error.is_io_error() => {
                self.set_up(&mut self.0.state.lock(), false);
                self.0.outages.begin(&error);
                None
            }
            Ok(Err(error)) => {
                self.lose(number, &error, Duration::ZERO);
                None
            }
            Err(late) => {
                let is_hung = {
                    let mut state = self.0.state.lock();
                    state.late += u32::from(state.number == number);
                    state.late >= LATE_MAX
                };
                if is_hung {
                    self.lose(number, &late, PAUSE);
                }
                None
            }
        }
    }

    /// Returns the connection and its number. Without one, a task makes it, and the caller does not wait.
    fn connection(&self) -> Option<(u64, MultiplexedConnection)> {
        let mut state = self.0.state.lock();
        if state.connection.is_none() && Instant::now() >= state.retry_at {
            state.retry_at = Instant::now() + CONNECT_WITHIN + PAUSE;
            let link = self.clone();
            tokio::spawn(async move { link.connect().await });
        }
        Some((state.number, state.connection.clone()?))
    }

    async fn connect(&self) {
        // Each call has its own time limit.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(None);
        let number = self.0.state.lock().number;
        let connect = async {
            let connection = self.0.client.get_multiplexed_async_connection_with_config(&config).await?;
            refuse_replica(connection.clone()).await?;
            Ok::<_, RedisError>(connection)
        };
        match timeout(CONNECT_WITHIN, connect).await {
            Ok(Ok(connection)) => {
                let mut state = self.0.state.lock();
                self.0.outages.end();
                (state.connection, state.number, state.late) = (Some(connection), number + 1, 0);
                self.set_up(&mut state, true);
            }
            Ok(Err(error)) => self.lose(number, &error, PAUSE),
            Err(late) => self.lose(number, &late, PAUSE),
        }
    }

    /// Gives the connection with a number up, and tries no other for `pause`.
    fn lose(&self, number: u64, error: &(dyn std::error::Error + 'static), pause: Duration) {
        let mut state = self.0.state.lock();
        if state.number != number {
            return;
        }
        (state.connection, state.late) = (None, 0);
        state.retry_at = Instant::now() + pause;
        self.set_up(&mut state, false);
        self.0.outages.begin(error);
    }

    fn set_up(&self, state: &mut LinkState, is_up: bool) {
        if let Some(name) = self.0.gauge
            && state.is_up.replace(is_up) != Some(is_up)
        {
            gauge!(name).set(f64::from(u8::from(is_up)));
        }
    }
}

/// Returns whether an error shows that the server follows another one now.
pub(super) fn is_demoted(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "MASTERDOWN"))
}

/// Fails if the server is a replica, which takes no entries. A server that does not tell its role is used.
async fn refuse_replica(mut connection: MultiplexedConnection) -> Result<(), RedisError> {
    let mut info = redis::cmd("INFO");
    let replication: Result<String, RedisError> = info.arg("replication").query_async(&mut connection).await;
    match replication {
        Ok(text) if text.lines().any(|line| line.trim_end() == "role:slave") => {
            Err((redis::ErrorKind::Client, "the server is a replica").into())
        }
        Err(error) if error.code().is_none() => Err(error),
        _ => Ok(()),
    }
}

impl OutageLog {
    fn begin(&self, error: &(dyn std::error::Error + 'static)) {
        let mut logged_at = self.logged_at.lock();
        if logged_at.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            *logged_at = Some(Instant::now());
            tracing::warn!(error, "Redis in front of the store does not answer; the store is asked instead");
        }
    }

    fn end(&self) {
        if self.logged_at.lock().take().is_some() {
            tracing::info!("Redis in front of the store is back");
        }
    }
}

/// Longest wait for a connection. Only the start waits for it, and no request does.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Pause before another connection is tried, after one that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Late replies in a row after which the server counts as away: each costs a request its whole time limit.
const LATE_MAX: u32 = 3;

/// Shortest time between two log lines about an outage.
const LOG_EVERY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use ibid_testkit::redis::Redis;
    use tokio::sync::oneshot;

    fn broken() -> RedisError {
        std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()
    }

    /// Returns the server's number of the connection that a call goes over.
    async fn client_id(link: &Link) -> Option<i64> {
        let mut command = redis::cmd("CLIENT");
        command.arg("ID");
        link.ask(async |connection| command.query_async(connection).await).await
    }

    #[tokio::test]
    async fn a_late_error_of_an_earlier_connection_ends_no_other() {
        let server = Redis::start();
        let client = Client::open(server.url()).expect("a URL");
        let link = Link::start(client, Duration::from_secs(60), None, Arc::default()).await;
        let (release, released) = oneshot::channel::<()>();
        let (begun, has_begun) = oneshot::channel::<()>();
        let late = tokio::spawn({
            let link = link.clone();
            async move {
                link.ask(async move |_| {
                    begun.send(()).expect("the test waits");
                    released.await.expect("it is released");
                    Err::<(), _>(broken())
                })
                .await
            }
        });
        has_begun.await.expect("it begins");
        while link.0.state.lock().connection.is_some() {
            link.ask(async |_| Err::<(), _>(broken())).await;
        }
        let second = loop {
            match client_id(&link).await {
                Some(id) => break id,
                None => tokio::task::yield_now().await,
            }
        };
        release.send(()).expect("it waits");
        assert_eq!(late.await.expect("it ends"), None);
        assert_eq!(client_id(&link).await, Some(second), "the second connection is still in use");
    }
}
