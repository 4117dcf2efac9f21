//! Sockets and signals, the same for both programs.

use std::io::{self, Write as _};
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Listens, and says where on stdout: whoever asked for port 0 reads it there.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
    let failed = |source| ListenError { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let mut out = io::stdout().lock();
    writeln!(out, "listening on {}", listener.local_addr().map_err(failed)?).map_err(failed)?;
    out.flush().map_err(failed)?;
    drop(out);
    Ok(listener)
}

/// Ends at SIGTERM or SIGINT.
pub fn stop_signal() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

/// An address that can't be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on `{address}`")]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}
