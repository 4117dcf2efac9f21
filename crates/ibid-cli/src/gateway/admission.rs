//! Admission of guarded requests: each needs a slot, memory for its body, and a connection with few enough runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use http::request::Parts;
use ibid::http::{Admission, AdmissionPermit, BodyBytes, OverCapacityError};

use super::bounds::{self, Bound};
use super::connections::{Connection, ConnectionRun};
use super::replies::Buffers;

/// The bounds of guarded requests.
pub(crate) struct GuardedSlots {
    used: Arc<AtomicUsize>,
    max: usize,
    max_per_connection: usize,
    buffers: Arc<Buffers>,
}

impl GuardedSlots {
    pub(crate) fn new(max: usize, max_per_connection: usize, buffers: Arc<Buffers>) -> GuardedSlots {
        GuardedSlots { used: Arc::default(), max, max_per_connection, buffers }
    }

    pub(crate) fn in_use(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }
}

impl Admission for GuardedSlots {
    fn has_room_for_replay(&self, bytes: u64) -> bool {
        self.buffers.has_room_for_reply(bytes)
    }

    fn admit(&self, head: &Parts) -> Result<AdmissionPermit, OverCapacityError> {
        let run = match head.extensions.get::<Arc<Connection>>() {
            None => None,
            Some(connection) => match connection.begin_run(self.max_per_connection) {
                None => return Err(over_capacity(Bound::GuardedPerConnection)),
                run => run,
            },
        };
        let slot = GuardedSlot(Arc::clone(&self.used));
        // Never more than the bound. A refused request counts for a moment, in which another one may be refused because of it.
        if slot.0.fetch_add(1, Ordering::AcqRel) >= self.max {
            return Err(over_capacity(Bound::Guarded));
        }
        if !self.buffers.has_room_for_request(0) {
            return Err(OverCapacityError);
        }
        let bytes = HeldBody { buffers: Arc::clone(&self.buffers), bytes: AtomicU64::new(0), _run: run };
        Ok(AdmissionPermit { client: Box::new(slot), body: Arc::new(bytes) })
    }
}

/// One of the slots; dropping it frees the slot.
struct GuardedSlot(Arc<AtomicUsize>);

impl Drop for GuardedSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The byte count of a guarded request's body, until the body is no longer needed.
struct HeldBody {
    buffers: Arc<Buffers>,
    bytes: AtomicU64,
    _run: Option<ConnectionRun>,
}

impl BodyBytes for HeldBody {
    fn grow(&self, bytes: u64) -> Result<(), OverCapacityError> {
        if !self.buffers.has_room_for_request(bytes) {
            return Err(OverCapacityError);
        }
        self.buffers.add_request(bytes);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        self.buffers.remove_request(self.bytes.load(Ordering::Relaxed));
    }
}

fn over_capacity(bound: Bound) -> OverCapacityError {
    bounds::count_reached(bound);
    OverCapacityError
}
