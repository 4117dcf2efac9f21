//! Deadlines of operations on the store, with one timer for all of them. The store answers nearly every operation long before
//! its deadline, and a separate timer for each would cost several times as much as storing one deadline.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Bounds waits with one shared timer task, which ends when this is dropped.
pub(crate) struct Deadlines(Arc<TimerState>);

#[derive(Default)]
struct TimerState {
    waits: Mutex<Waits>,
    /// Wakes the timer earlier than it planned.
    sooner: Notify,
}

#[derive(Default)]
struct Waits {
    /// One slot for each wait, at an index that the wait knows.
    slots: Vec<Option<Wait>>,
    free: Vec<usize>,
    /// Instant at which the timer wakes next. `None` while nothing waits.
    timer_at: Option<Instant>,
    /// `true` once the timer has ended.
    closed: bool,
}

struct Wait {
    deadline: Instant,
    waker: Waker,
}

impl Deadlines {
    /// Starts the timer task on the current runtime.
    pub(crate) fn start() -> Deadlines {
        let shared = Arc::new(TimerState::default());
        tokio::spawn(Timer(shared.clone()).run());
        Deadlines(shared)
    }

    /// Runs `work` until its deadline, if it has one. Returns `None` if the work has not ended by then, or if the timer's
    /// runtime has shut down.
    pub(crate) async fn within<F: Future>(&self, deadline: Option<Instant>, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        let mut slot = Slot { shared: &self.0, index: None };
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            match deadline {
                Some(deadline) if slot.is_over(deadline, context.waker()) => Poll::Ready(None),
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

impl TimerState {
    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock()
    }
}

/// The slot of one wait.
struct Slot<'a> {
    shared: &'a TimerState,
    /// Taken when the wait is first polled without a result.
    index: Option<usize>,
}

impl Slot<'_> {
    /// Returns whether the wait is over. If not, `waker` is woken when it is.
    fn is_over(&mut self, deadline: Instant, waker: &Waker) -> bool {
        let mut waits = self.shared.waits();
        if waits.closed || self.index.is_some() && Instant::now() >= deadline {
            return true;
        }
        let wait = Wait { deadline, waker: waker.clone() };
        match self.index.or_else(|| waits.free.pop()) {
            Some(index) => {
                waits.slots[index] = Some(wait);
                self.index = Some(index);
            }
            None => {
                self.index = Some(waits.slots.len());
                waits.slots.push(Some(wait));
            }
        }
        if waits.timer_at.is_none_or(|timer_at| deadline < timer_at) {
            waits.timer_at = Some(deadline);
            self.shared.sooner.notify_one();
        }
        false
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            let mut waits = self.shared.waits();
            waits.slots[index] = None;
            waits.free.push(index);
        }
    }
}

struct Timer(Arc<TimerState>);

impl Timer {
    async fn run(self) {
        while let Some(next) = self.wake_expired() {
            let sooner = self.0.sooner.notified();
            match next {
                Some(next) => drop(timeout_at(next, sooner).await),
                None => sooner.await,
            }
        }
    }

    /// Wakes the waits whose deadline has passed. Returns the next deadline, if anything waits, and `None` at the end.
    fn wake_expired(&self) -> Option<Option<Instant>> {
        let mut waits = self.0.waits();
        let now = Instant::now();
        let mut next = None;
        for wait in waits.slots.iter().flatten() {
            if wait.deadline <= now {
                wait.waker.wake_by_ref();
            } else if next.is_none_or(|next| wait.deadline < next) {
                next = Some(wait.deadline);
            }
        }
        waits.timer_at = next;
        (!waits.closed).then_some(next)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let mut waits = self.0.waits();
        waits.closed = true;
        waits.slots.iter().flatten().for_each(|wait| wait.waker.wake_by_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn each_wait_ends_at_its_own_deadline() {
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
    async fn work_that_ends_in_time_frees_its_slot() {
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
        assert_eq!(deadlines.0.waits().slots.len(), 1);
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
