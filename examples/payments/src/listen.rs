//! Sockets and signals, the same for both programs.

use std::error::Error;
use std::io::{self, Write as _};
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

/// What can end a program.
pub type Failure = Box<dyn Error + Send + Sync>;

/// A program at work in tasks of its own, until the future that it was started with ends.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    work: JoinHandle<Result<(), Failure>>,
}

impl Running {
    /// Sets to work.
    pub(crate) fn new(
        address: SocketAddr,
        work: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) -> Running {
        Running { address, work: tokio::spawn(work) }
    }

    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says where on stdout: whoever asked for port 0 reads it there.
    pub fn announce(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "listening on {}", self.address)?;
        out.flush()
    }

    /// Waits until it has stopped. Nothing is left then that holds its files.
    pub async fn ended(self) -> Result<(), Failure> {
        self.work.await?
    }
}

/// Listens, and says where: port 0 takes a free one.
pub async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ListenError> {
    let failed = |source| ListenError { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
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
