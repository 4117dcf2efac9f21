//! A port that is held without listening on it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};

use super::Upstream;
use super::connection::accept;
use super::ledger::Ledger;

/// A port that we hold and do not listen on: connecting is refused, and no other test can take it.
#[derive(Debug)]
pub struct ReservedPort {
    addr: SocketAddr,
    socket: TcpSocket,
}

impl ReservedPort {
    /// Reserves a free loopback port.
    pub fn port() -> ReservedPort {
        ReservedPort::bind((Ipv4Addr::LOCALHOST, 0).into())
    }

    /// Returns the address at which connections are refused for now.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://address`, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Starts listening on the reserved port.
    pub fn start(self) -> Upstream {
        let (addr, listener) = self.listen();
        let ledger = Arc::new(Ledger::default());
        let serving = tokio::spawn(accept(listener, Arc::clone(&ledger)));
        Upstream { addr, ledger, serving }
    }

    pub(crate) fn listen(self) -> (SocketAddr, TcpListener) {
        (self.addr, self.socket.listen(BACKLOG).expect("listen on a bound socket"))
    }

    pub(super) fn bind(addr: SocketAddr) -> ReservedPort {
        let socket = TcpSocket::new_v4().expect("a socket");
        // Connections of the fixture that had this port before may still be in TIME_WAIT.
        socket.set_reuseaddr(true).expect("reuseaddr on a fresh socket");
        socket.bind(addr).unwrap_or_else(|e| panic!("bind `{addr}`: {e}"));
        ReservedPort { addr: socket.local_addr().expect("the address of a bound socket"), socket }
    }
}

/// Connections that may wait to be accepted: load runs open some hundred at once.
const BACKLOG: u32 = 1024;
