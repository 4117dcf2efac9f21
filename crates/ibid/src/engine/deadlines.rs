//! Deadlines of what waits for the store, with one timer for all of them: nearly everything is answered long before its
//! deadline, and a timer for each costs several times what it takes to note one down.
//!
//! It must not know what waits.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Bounds waits. The timer ends with it.
pub(crate) struct Deadlines(Arc<Shared>);

#[derive(Default)]
struct Shared {
    waits: Mutex<Waits>,
    /// The timer must look sooner than it meant to.
    sooner: Notify,
}

#[derive(Default)]
struct Waits {
    /// One for each that waits, at the place that it knows.
    places: Vec<Option<Wait>>,
    free: Vec<usize>,
    /// When the timer looks next. None: when somebody comes.
    looks_at: Option<Instant>,
    /// Nobody looks any more.
    closed: bool,
}

struct Wait {
    deadline: Instant,
    waker: Waker,
}

impl Deadlines {
    /// Starts the timer.
    pub(crate) fn start() -> Deadlines {
        let shared = Arc::new(Shared::default());
        tokio::spawn(Timer(shared.clone()).run());
        Deadlines(shared)
    }

    /// What comes of `work`; none if it has come to nothing by the deadline, if it has one, or if the runtime of the timer
    /// has ended.
    pub(crate) async fn within<F: Future>(&self, deadline: Option<Instant>, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        let mut place = Place { shared: &self.0, place: None };
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            match deadline {
                Some(deadline) if place.is_over(deadline, context.waker()) => Poll::Ready(None),
                _ => Poll::Pending,
            }
        })
        .await
    }
}

impl Drop for Deadlines {
    fn drop(&mut self) {
        self.0.waits().closed = true;
        self.0.sooner.notify_one();
    }
}

impl Shared {
    fn waits(&self) -> MutexGuard<'_, Waits> {
        // Nothing in here panics half-way through a change.
        self.waits.lock()
    }
}

/// Where one that waits is noted down, from when it first had to.
struct Place<'a> {
    shared: &'a Shared,
    place: Option<usize>,
}

impl Place<'_> {
    /// Whether the wait is over. If not, `waker` is told when it is.
    fn is_over(&mut self, deadline: Instant, waker: &Waker) -> bool {
        let mut waits = self.shared.waits();
        if waits.closed || self.place.is_some() && Instant::now() >= deadline {
            return true;
        }
        let wait = Wait { deadline, waker: waker.clone() };
        match self.place.or_else(|| waits.free.pop()) {
            Some(place) => {
                waits.places[place] = Some(wait);
                self.place = Some(place);
            }
            None => {
                self.place = Some(waits.places.len());
                waits.places.push(Some(wait));
            }
        }
        if waits.looks_at.is_none_or(|looks_at| deadline < looks_at) {
            waits.looks_at = Some(deadline);
            self.shared.sooner.notify_one();
        }
        false
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let mut waits = self.shared.waits();
            waits.places[place] = None;
            waits.free.push(place);
        }
    }
}

struct Timer(Arc<Shared>);

impl Timer {
    async fn run(self) {
        while let Some(looks_at) = self.look() {
            let sooner = self.0.sooner.notified();
            match looks_at {
                Some(looks_at) => drop(timeout_at(looks_at, sooner).await),
                None => sooner.await,
            }
        }
    }

    /// Wakes those whose deadline has passed. When to look again, if somebody waits; none at the end.
    fn look(&self) -> Option<Option<Instant>> {
        let mut waits = self.0.waits();
        let now = Instant::now();
        let mut next = None;
        for wait in waits.places.iter().flatten() {
            if wait.deadline <= now {
                wait.waker.wake_by_ref();
            } else if next.is_none_or(|next| wait.deadline < next) {
                next = Some(wait.deadline);
            }
        }
        waits.looks_at = next;
        (!waits.closed).then_some(next)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let mut waits = self.0.waits();
        waits.closed = true;
        waits.places.iter().flatten().for_each(|wait| wait.waker.wake_by_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn each_wait_ends_at_its_own_deadline_whichever_came_first() {
        let (deadlines, start) = (Deadlines::start(), Instant::now());
        let ended = async |secs: u32| {
            assert_eq!(deadlines.within(Some(start + SECOND * secs), pending::<()>()).await, None);
            start.elapsed().as_secs()
        };
        assert_eq!(tokio::join!(ended(5), ended(2), ended(9), ended(2)), (5, 2, 9, 2));
        assert_eq!(ended(12).await, 12, "also after all were gone");
        assert_eq!(ended(3).await, 12, "one that has passed is over at once");
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_in_time_is_given_back_and_its_place_is_free() {
        let deadlines = Deadlines::start();
        let soon = || Some(Instant::now() + SECOND);
        assert_eq!(deadlines.within(soon(), ready(7)).await, Some(7));
        for _ in 0..3 {
            let work = async {
                tokio::time::sleep(SECOND / 2).await;
                8
            };
            assert_eq!(deadlines.within(soon(), work).await, Some(8));
        }
        assert_eq!(deadlines.0.waits().places.len(), 1);
        assert_eq!(deadlines.0.waits().free.len(), 1);
    }

    #[test]
    fn no_wait_outlives_the_runtime_of_the_timer() {
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let (timers, callers) = (runtime(), runtime());
        let deadlines = timers.block_on(async { Deadlines::start() });
        let waited = callers.block_on(async {
            let far = Some(Instant::now() + 3600 * SECOND);
            let wait = deadlines.within(far, pending::<()>());
            tokio::join!(wait, async { timers.shutdown_background() }).0
        });
        assert_eq!(waited, None);
        let far = Some(Instant::now() + 3600 * SECOND);
        assert_eq!(callers.block_on(deadlines.within(far, pending::<()>())), None);
    }
}
