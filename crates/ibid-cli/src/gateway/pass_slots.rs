//! Slots of unguarded requests, separate from everything that guarded requests use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::bounds::{self, Bound};

/// The slots of unguarded requests.
pub(crate) struct PassSlots {
    max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: usize,
    next_id: u64,
    /// Requests that wait for a response head, the oldest first.
    waiting: BTreeMap<u64, WaitingRequest>,
}

struct WaitingRequest {
    since: Instant,
    end: oneshot::Sender<()>,
}

/// The slot of one request; dropping it frees the slot.
pub(crate) struct PassSlot {
    slots: Arc<PassSlots>,
    id: u64,
    has_head: bool,
}

impl PassSlots {
    pub(crate) fn new(max: usize) -> PassSlots {
        PassSlots { max, state: Mutex::default() }
    }

    /// Takes a slot. If none is free, ends the request that has waited longest for a head and takes over its slot.
    ///
    /// Returns `None` if no request waits for a head. The receiver resolves when this request has to end.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<(PassSlot, oneshot::Receiver<()>)> {
        let mut state = self.state.lock();
        if state.used >= self.max {
            bounds::count_reached(Bound::Passed);
            state.end_longest_waiting(Duration::ZERO)?;
        }
        state.used += 1;
        let id = state.next_id;
        state.next_id += 1;
        let (end, ended) = oneshot::channel();
        state.waiting.insert(id, WaitingRequest { since: Instant::now(), end });
        Some((PassSlot { slots: Arc::clone(self), id, has_head: false }, ended))
    }

    /// Ends the request that has waited longest for a head, if it has waited for `at_least`.
    pub(crate) fn end_longest_waiting(&self, at_least: Duration) {
        let _ = self.state.lock().end_longest_waiting(at_least);
    }

    pub(crate) fn in_use(&self) -> usize {
        self.state.lock().used
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }
}

impl State {
    /// Ends one request and frees its slot at once. The rest of what it holds is freed when its task runs.
    fn end_longest_waiting(&mut self, at_least: Duration) -> Option<()> {
        let longest = self.waiting.first_entry().filter(|entry| entry.get().since.elapsed() >= at_least)?;
        // If the receiver was dropped with its client, the request is returning its slot at this moment.
        let _ = longest.remove().end.send(());
        self.used -= 1;
        Some(())
    }
}

impl PassSlot {
    /// Marks that the response head has arrived: from now on the request is not ended for another one.
    ///
    /// Returns `false` if it has already been ended and its slot belongs to another request.
    pub(crate) fn mark_head(&mut self) -> bool {
        self.has_head = self.slots.state.lock().waiting.remove(&self.id).is_some();
        self.has_head
    }
}

impl Drop for PassSlot {
    fn drop(&mut self) {
        let mut state = self.slots.state.lock();
        let was_waiting = state.waiting.remove(&self.id).is_some();
        if was_waiting || self.has_head {
            state.used -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_for_a_head_makes_room_for_the_next() {
        let slots = Arc::new(PassSlots::new(2));
        let (mut first, mut first_ends) = slots.enter().unwrap();
        let (mut second, mut second_ends) = slots.enter().unwrap();
        let (third, mut third_ends) = slots.enter().unwrap();
        assert!(first_ends.try_recv().is_ok() && second_ends.try_recv().is_err());
        assert!(!first.mark_head(), "its slot belongs to another request");
        drop(first);
        assert_eq!(slots.in_use(), 2);

        // With its head the second is safe, and the third is the one that waits longest.
        assert!(second.mark_head());
        let (mut fourth, _ends) = slots.enter().unwrap();
        assert!(third_ends.try_recv().is_ok());
        drop(third);
        assert!(fourth.mark_head());
        assert!(slots.enter().is_none(), "no request waits for a head");
        drop(second);
        assert_eq!(slots.in_use(), 1);
        assert!(slots.enter().is_some());
        drop(fourth);
        assert_eq!(slots.in_use(), 0);
    }
}
