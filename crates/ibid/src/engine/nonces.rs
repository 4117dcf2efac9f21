//! Nonces for the engine's own writes, many at a time: a question to the system for each costs as much as the rest of
//! what a begin decides.
//!
//! One engine's, never one thread's or one process's: a process that forks carries them along, and two that hand out the
//! same nonce would each take the other's write for its own. An engine can't be used on both sides of a fork, for its
//! connections and threads can't.

use std::sync::{Mutex, PoisonError};

use ibid_core::record::Nonce;

use super::random;

pub(crate) struct Nonces(Mutex<Drawn>);

struct Drawn {
    bytes: [u8; AT_ONCE * NONCE_BYTES],
    /// How many bytes were handed out: none of them ever again.
    used: usize,
}

impl Default for Nonces {
    fn default() -> Self {
        let bytes = [0; AT_ONCE * NONCE_BYTES];
        Nonces(Mutex::new(Drawn { used: bytes.len(), bytes }))
    }
}

impl Nonces {
    /// A fresh one, as [`super::nonce`] gives.
    pub(crate) fn draw(&self) -> Nonce {
        // Without random bytes it panics before anything is changed.
        let mut drawn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if drawn.used == drawn.bytes.len() {
            *drawn = Drawn { bytes: random(), used: 0 };
        }
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&drawn.bytes[drawn.used..][..NONCE_BYTES]);
        drawn.used += NONCE_BYTES;
        Nonce(u64::from_be_bytes(nonce))
    }
}

const NONCE_BYTES: usize = 8;

/// Asked for at once. The system gives up to 256 bytes in one piece, and with more the question is no longer what costs.
const AT_ONCE: usize = 32;

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
