//! Random bytes: nonces, jitter, ids and secrets.

use ibid_core::record::Nonce;
use parking_lot::Mutex;

/// Returns `N` random bytes from the operating system.
///
/// # Panics
///
/// Panics if the system has no randomness: then no key can be reserved safely, and a later call would fail as well.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes
}

/// Draws one nonce from the operating system. The engine's own writes draw theirs from [`Nonces`].
///
/// A nonce has 64 random bits. Among a thousand million writes of one counter value, two nonces are equal with a probability
/// of one in forty. A version also carries the counter, so even then both writes would have to be for the same record.
pub(crate) fn nonce() -> Nonce {
    Nonce(u64::from_be_bytes(random()))
}

/// Returns a number from 0 to 1, which spreads the retries of many waiting callers over time.
pub(crate) fn jitter() -> f64 {
    f64::from(u16::from_be_bytes(random())) / f64::from(u16::MAX)
}

/// Buffered nonces for the writes of one engine: one system call for each nonce would cost as much as the rest of what a
/// begin decides.
///
/// The buffer belongs to one engine, never to a thread or the process. A process that forks copies its buffers, and two
/// processes that hand out the same nonce would each take the other's write for its own. An engine can't be used on both
/// sides of a fork, because its connections and threads can't.
pub(crate) struct Nonces(Mutex<Buffer>);

struct Buffer {
    bytes: [u8; BUFFERED * NONCE_BYTES],
    /// Bytes already handed out. None of them is handed out again.
    used: usize,
}

impl Default for Nonces {
    fn default() -> Self {
        let bytes = [0; BUFFERED * NONCE_BYTES];
        Nonces(Mutex::new(Buffer { used: bytes.len(), bytes }))
    }
}

impl Nonces {
    /// Draws a fresh nonce, as random as one of [`nonce`].
    pub(crate) fn draw(&self) -> Nonce {
        let mut buffer = self.0.lock();
        if buffer.used == buffer.bytes.len() {
            // If the system has no random bytes, this panics and leaves the buffer used up, as it was.
            *buffer = Buffer { bytes: random(), used: 0 };
        }
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&buffer.bytes[buffer.used..][..NONCE_BYTES]);
        buffer.used += NONCE_BYTES;
        Nonce(u64::from_be_bytes(nonce))
    }
}

const NONCE_BYTES: usize = 8;

/// Nonces drawn with one system call. The system returns up to 256 bytes in one piece; with more, the call is no longer
/// what costs.
const BUFFERED: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Arc;

    #[test]
    fn no_nonce_is_handed_out_twice_by_any_thread() {
        let nonces = Arc::new(Nonces::default());
        let draw = |nonces: Arc<Nonces>| move || (0..1000).map(|_| nonces.draw()).collect::<Vec<_>>();
        let drawing: Vec<_> = (0..4).map(|_| std::thread::spawn(draw(nonces.clone()))).collect();
        let all: HashSet<_> = drawing.into_iter().flat_map(|one| one.join().expect("it draws")).collect();
        assert_eq!(all.len(), 4000);
        assert!(!all.contains(&Nonce(0)));
    }
}
