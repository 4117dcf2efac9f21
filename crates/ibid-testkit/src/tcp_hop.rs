//! A hop before a server, as a name or a virtual address is one: it can lead to another server, and it can be closed.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

/// A port of the loopback interface whose connections are passed on to another one. It closes when dropped.
#[derive(Debug)]
pub struct TcpHop {
    port: u16,
    target: Arc<AtomicU16>,
    /// Dropped to end the task, which then closes the port and all connections.
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl TcpHop {
    /// Starts a hop on a free port, before a port of this machine.
    pub async fn start(target: u16) -> TcpHop {
        TcpHop::start_at(0, target).await
    }

    /// Like [`Self::start`], on a port that an earlier hop had.
    ///
    /// # Panics
    ///
    /// Panics if the port is taken.
    pub async fn start_at(port: u16, target: u16) -> TcpHop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.expect("the port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let target = Arc::new(AtomicU16::new(target));
        let server = target.clone();
        let (stop, mut stopped) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    _ = &mut stopped => break,
                };
                let Ok((mut client, _)) = accepted else { continue };
                let server = server.load(Ordering::SeqCst);
                connections.spawn(async move {
                    // A server that is away closes the connection, and one that breaks is the client's to notice.
                    if let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await {
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
            drop(listener);
            connections.shutdown().await;
        });
        TcpHop { port, target, stop, serving }
    }

    /// Returns the port to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Leads new connections to another port. Open ones stay where they are.
    pub fn lead_to(&self, target: u16) {
        self.target.store(target, Ordering::SeqCst);
    }

    /// Closes the port and all connections, and returns once they are closed.
    pub async fn close(self) {
        drop(self.stop);
        self.serving.await.expect("it closes the port");
    }
}
