//! Logs tenant and forwarding fields that came from hops that may not set them.
//!
//! This is the first thing that goes wrong behind a proxy in another container: the field is stripped, every request gets
//! 401, and only the address explains why. Any client can cause such lines, so they are bounded.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use http::HeaderName;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The addresses that were logged recently.
#[derive(Debug, Default)]
pub(crate) struct UntrustedHops(Mutex<HashMap<IpAddr, Instant>>);

impl UntrustedHops {
    /// Logs that `peer` sent `field`, at most once a minute for each address.
    pub(crate) fn report(&self, field: &HeaderName, peer: IpAddr) {
        let peer = peer.to_canonical();
        if self.is_due(peer, Instant::now()) {
            tracing::warn!("`{field}` came from {peer}, which is not in `tenant.trusted`: it was removed");
        }
    }

    fn is_due(&self, peer: IpAddr, now: Instant) -> bool {
        let mut logged = self.0.lock();
        if logged.get(&peer).is_some_and(|at| now < *at + QUIET_FOR) {
            return false;
        }
        if logged.len() >= ADDRESSES_MAX {
            logged.retain(|_, at| now < *at + QUIET_FOR);
        }
        if logged.len() >= ADDRESSES_MAX {
            return false;
        }
        logged.insert(peer, now);
        true
    }
}

/// Time in which an address is not logged again. The line is for an operator who reads the log, not for counting.
const QUIET_FOR: Duration = Duration::from_secs(60);

/// Most addresses that are remembered, and so the most lines per minute. A proxy fleet is far smaller; only an attacker
/// has more.
const ADDRESSES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_named_once_a_minute() {
        let (hops, start) = (UntrustedHops::default(), Instant::now());
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        assert!(hops.is_due(one, start) && hops.is_due(other, start));
        assert!(!hops.is_due(one, start + QUIET_FOR - Duration::from_millis(1)));
        assert!(hops.is_due(one, start + QUIET_FOR));
    }

    #[test]
    fn the_addresses_that_are_remembered_are_bounded() {
        let (hops, start) = (UntrustedHops::default(), Instant::now());
        let address = |at: u32| IpAddr::from(at.to_be_bytes());
        let lines = (0..10_000).filter(|at| hops.is_due(address(*at), start)).count();
        assert_eq!(lines, ADDRESSES_MAX);
        assert!(hops.is_due(address(20_000), start + QUIET_FOR), "after a minute there is room again");
        assert!(hops.0.lock().len() <= ADDRESSES_MAX);
    }
}
