//! A bound on connections to the upstream: a connector that waits for a slot, and a stream that holds it.

use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

use super::bounds::{self, Bound};

/// The slots for connections of one pool.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamConnections {
    slots: Arc<Semaphore>,
    max: usize,
    bound: Bound,
    wait_for: Duration,
}

impl UpstreamConnections {
    pub(crate) fn new(max: usize, bound: Bound) -> UpstreamConnections {
        let max = max.min(Semaphore::MAX_PERMITS);
        UpstreamConnections { slots: Arc::new(Semaphore::new(max)), max, bound, wait_for: WAIT_FOR }
    }

    /// Returns the same slots with another time-out for the wait.
    #[cfg(test)]
    pub(crate) fn waiting_for(self, wait_for: Duration) -> UpstreamConnections {
        UpstreamConnections { wait_for, ..self }
    }

    /// Returns slots without a bound; meant for a client with few requests.
    pub(crate) fn unbounded() -> UpstreamConnections {
        UpstreamConnections::new(Semaphore::MAX_PERMITS, Bound::UpstreamConnections)
    }

    pub(crate) fn in_use(&self) -> usize {
        self.max - self.slots.available_permits()
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    async fn slot(&self) -> Result<OwnedSemaphorePermit, NoConnectionFree> {
        if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
            return Ok(slot);
        }
        // Meanwhile, if another request ends, the pool gives its connection to this one.
        match tokio::time::timeout(self.wait_for, Arc::clone(&self.slots).acquire_owned()).await {
            Ok(slot) => Ok(slot.expect("the semaphore is never closed")),
            Err(_) => {
                bounds::count_reached(self.bound);
                Err(NoConnectionFree)
            }
        }
    }
}

/// Error for a time-out because every connection to the upstream was in use. It proves that nothing was sent.
#[derive(Debug, thiserror::Error)]
#[error("every connection to the upstream is in use")]
struct NoConnectionFree;

/// A connector with a bound on its connections.
#[derive(Clone, Debug)]
pub(crate) struct BoundedConnector<C> {
    connector: C,
    connections: UpstreamConnections,
}

impl<C> BoundedConnector<C> {
    pub(crate) fn new(connector: C, connections: UpstreamConnections) -> BoundedConnector<C> {
        BoundedConnector { connector, connections }
    }
}

impl<C> Service<Uri> for BoundedConnector<C>
where
    C: Service<Uri> + Clone + Send + 'static,
    C::Error: Into<Box<dyn StdError + Send + Sync>>,
    C::Future: Send,
    C::Response: Send,
{
    type Response = BoundedStream<C::Response>;
    type Error = Box<dyn StdError + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connector.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        // Call the connector that `poll_ready` was called on, and leave the clone in its place.
        let clone = self.connector.clone();
        let mut connector = std::mem::replace(&mut self.connector, clone);
        let connections = self.connections.clone();
        Box::pin(async move {
            let slot = connections.slot().await?;
            let stream = connector.call(to).await.map_err(Into::into)?;
            Ok(BoundedStream { stream, _slot: slot })
        })
    }
}

/// A connection to the upstream and its slot.
pub(crate) struct BoundedStream<T> {
    stream: T,
    _slot: OwnedSemaphorePermit,
}

impl<T: Connection> Connection for BoundedStream<T> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

impl<T: Read + Unpin> Read for BoundedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<T: Write + Unpin> Write for BoundedStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Time that a request waits for a slot: as long as connecting may take. Giving up then proves that nothing was sent.
const WAIT_FOR: Duration = Duration::from_secs(5);
