//! The processor's accept loop. It is written out because a page must be able to reset its own connection.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tower::ServiceExt as _;

/// The connection that a request came on; found in its extensions.
#[derive(Clone, Debug, Default)]
pub struct Connection(Arc<Notify>);

impl Connection {
    /// Ends it with a TCP reset, and all requests on it.
    pub fn reset(&self) {
        self.0.notify_one();
    }
}

/// Serves for as long as it is polled. When it is dropped, every connection is.
pub async fn serve(listener: TcpListener, router: Router) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let accepted = listener.accept().await;
        while connections.try_join_next().is_some() {}
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of files, most likely: the next one to end makes room.
                tracing::warn!(%error, "cannot accept a connection");
                connections.join_next().await;
                continue;
            }
        };
        let router = router.clone();
        connections.spawn(async move {
            converse(stream, router).await;
            drop(slot);
        });
    }
}

async fn converse(stream: TcpStream, router: Router) {
    let _ = stream.set_nodelay(true);
    let handle = Connection::default();
    let reset = handle.0.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(handle.clone());
        router.clone().oneshot(request.map(Body::new))
    });
    let mut connection =
        http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        _ = &mut connection => {}
        () = reset.notified() => {
            let stream = connection.into_parts().io.into_inner();
            // Closing with nothing to linger for is how a reset is sent.
            let _ = stream.set_zero_linger();
        }
    }
}

/// Enough for the callers of any test, and below the usual bound of 1024 open files.
const CONNECTIONS_MAX: usize = 900;
