//! The guess whether flights meet ids that are taken: retries of finished requests, or keys that another process begins at this moment.

use std::sync::atomic::{AtomicU32, Ordering};

/// Decides whether a flight of begins looks for taken ids before it inserts.
///
/// The look costs a descent of the index per begin. Without it one taken id fails the whole flight, which is sent again with
/// the look. So flights look for a while after one has met a taken id, and also at the start, when clients retry what the
/// process before this one has answered.
#[derive(Debug)]
pub(in super::super) struct TakenIds {
    /// Flights that still look.
    looks_left: AtomicU32,
}

impl Default for TakenIds {
    fn default() -> TakenIds {
        TakenIds { looks_left: AtomicU32::new(LOOKS) }
    }
}

impl TakenIds {
    /// Returns whether the next flight looks.
    pub(super) fn may_be_met(&self) -> bool {
        self.looks_left.load(Ordering::Relaxed) > 0
    }

    /// Notes whether a flight met a taken id.
    pub(super) fn note(&self, was_met: bool) {
        // Two flights that end at once may count as one: it is a guess either way.
        let left = self.looks_left.load(Ordering::Relaxed);
        self.looks_left.store(if was_met { LOOKS } else { left.saturating_sub(1) }, Ordering::Relaxed);
    }
}

/// Flights that look after one has met a taken id. If fewer than one flight in so many meets one, at most 3 % of the flights
/// are sent in vain.
const LOOKS: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flights_look_for_a_while_after_one_met_a_taken_id() {
        let ids = TakenIds::default();
        for met in [false, true] {
            ids.note(met);
            let left = (0..2 * LOOKS).take_while(|_| ids.may_be_met()).inspect(|_| ids.note(false)).count();
            assert_eq!(left, if met { LOOKS } else { LOOKS - 1 } as usize);
        }
    }
}
