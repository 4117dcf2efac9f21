//! Whether a guarded request is taken in: a slot, room for its body, and not too many runs of its connection.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::request::Parts;
use ibid::http::{Admission, Admitted, BodyBytes, Crowded};
use tokio::sync::Semaphore;

use super::bounds::{self, Bound};
use super::connections::{Connection, ConnectionRun};
use super::replies::Buffers;

/// The bounds of guarded requests.
pub(crate) struct GuardedSlots {
    slots: Arc<Semaphore>,
    max: usize,
    max_per_connection: usize,
    buffers: Arc<Buffers>,
}

impl GuardedSlots {
    pub(crate) fn new(max: usize, max_per_connection: usize, buffers: Arc<Buffers>) -> GuardedSlots {
        let max = max.min(Semaphore::MAX_PERMITS);
        GuardedSlots { slots: Arc::new(Semaphore::new(max)), max, max_per_connection, buffers }
    }

    pub(crate) fn used(&self) -> usize {
        self.max - self.slots.available_permits()
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }
}

impl Admission for GuardedSlots {
    fn has_room_for_replay(&self, bytes: u64) -> bool {
        self.buffers.has_room_for_reply(bytes)
    }

    fn admit(&self, head: &Parts) -> Result<Admitted, Crowded> {
        let run = match head.extensions.get::<Arc<Connection>>() {
            None => None,
            Some(connection) => match connection.begin_run(self.max_per_connection) {
                None => return Err(crowded(Bound::GuardedPerConnection)),
                run => run,
            },
        };
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            return Err(crowded(Bound::Guarded));
        };
        if !self.buffers.has_room_for_request(0) {
            return Err(Crowded);
        }
        let bytes = HeldBody { buffers: Arc::clone(&self.buffers), bytes: AtomicU64::new(0), _run: run };
        Ok(Admitted { client: Box::new(slot) as Box<dyn Any + Send + Sync>, body: Arc::new(bytes) })
    }
}

/// The body of a guarded request, until nobody needs it any more.
struct HeldBody {
    buffers: Arc<Buffers>,
    bytes: AtomicU64,
    _run: Option<ConnectionRun>,
}

impl BodyBytes for HeldBody {
    fn grow(&self, bytes: u64) -> Result<(), Crowded> {
        if !self.buffers.has_room_for_request(bytes) {
            return Err(Crowded);
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

fn crowded(bound: Bound) -> Crowded {
    bounds::reached(bound);
    Crowded
}
