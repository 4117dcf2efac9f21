//! A bounded queue between the async side and threads that block. It knows nothing of what it carries but its weight.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a queue is bounded by.
pub(super) trait Weigh {
    /// Roughly the bytes that it holds while it waits.
    fn weight(&self) -> usize;
}

/// Jobs in the order in which they came, but for urgent ones, which go first.
pub(super) struct Queue<J> {
    line: Mutex<Line<J>>,
    filled: Condvar,
}

struct Line<J> {
    urgent: VecDeque<J>,
    usual: VecDeque<J>,
    weight: usize,
    closed: bool,
}

/// What a thread finds at the queue.
pub(super) enum Found<J> {
    /// The next job.
    Job(J),
    /// Nothing came for as long as the thread wanted to wait.
    Nothing,
    /// Nothing will come any more.
    Closed,
}

/// A job that the queue did not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    /// Too much is waiting.
    #[error("too many requests are waiting for the disk")]
    Full,
    /// The thread at the other end is gone.
    #[error("the store is closed")]
    Closed,
}

impl<J: Weigh> Queue<J> {
    pub(super) fn new() -> Arc<Queue<J>> {
        let line = Line { urgent: VecDeque::new(), usual: VecDeque::new(), weight: 0, closed: false };
        Arc::new(Queue { line: Mutex::new(line), filled: Condvar::new() })
    }

    /// Adds a job, or refuses it at once: nobody ever waits for room.
    pub(super) fn push(&self, job: J, urgent: bool) -> Result<(), Refused> {
        let mut line = self.line();
        let weight = job.weight();
        if line.closed {
            return Err(Refused::Closed);
        }
        // An empty queue takes a job of any size, or a large one could never be done.
        if line.weight > 0 && line.weight.saturating_add(weight) > WEIGHT_MAX {
            return Err(Refused::Full);
        }
        line.weight += weight;
        if urgent {
            line.urgent.push_back(job)
        } else {
            line.usual.push_back(job)
        }
        drop(line);
        self.filled.notify_one();
        Ok(())
    }

    /// Puts back what is left of a job that was begun: it goes last and needs no room of its own.
    pub(super) fn put_back(&self, job: J) {
        let mut line = self.line();
        line.weight += job.weight();
        line.usual.push_back(job);
    }

    /// Waits for a job, for ever or for so long.
    pub(super) fn take(&self, patience: Option<Duration>) -> Found<J> {
        let mut line = self.line();
        loop {
            if let Some(job) = line.pop(|_| true) {
                return Found::Job(job);
            }
            if line.closed {
                return Found::Closed;
            }
            line = match patience {
                None => self.filled.wait(line).unwrap_or_else(PoisonError::into_inner),
                Some(patience) => {
                    let waited = self.filled.wait_timeout(line, patience);
                    let (line, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() && line.is_empty() && !line.closed {
                        return Found::Nothing;
                    }
                    line
                }
            };
        }
    }

    /// The next job if it is there and `fits`.
    pub(super) fn take_if(&self, fits: impl FnOnce(&J) -> bool) -> Option<J> {
        self.line().pop(fits)
    }

    /// Takes no more jobs; those that wait are still done.
    pub(super) fn close(&self) {
        self.line().closed = true;
        self.filled.notify_all();
    }

    fn line(&self) -> MutexGuard<'_, Line<J>> {
        // Every step under the lock leaves the line whole.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J: Weigh> Line<J> {
    fn pop(&mut self, fits: impl FnOnce(&J) -> bool) -> Option<J> {
        let from = if self.urgent.is_empty() { &mut self.usual } else { &mut self.urgent };
        let job = from.pop_front_if(|job| fits(job))?;
        self.weight -= job.weight();
        Some(job)
    }

    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.usual.is_empty()
    }
}

impl<J> fmt::Debug for Queue<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queue")
    }
}

/// Held by the threads that serve a queue: when the last has ended, even by a panic, nobody waits any more.
pub(super) struct Serving<J: Weigh>(pub(super) Arc<Queue<J>>);

impl<J: Weigh> Drop for Serving<J> {
    fn drop(&mut self) {
        let mut line = self.0.line();
        line.closed = true;
        // Dropping a job drops its reply, which its caller sees.
        (line.urgent, line.usual, line.weight) = (VecDeque::new(), VecDeque::new(), 0);
    }
}

/// Most that may wait. At a kilobyte for a small change this is over a second of a fast disk's work; what waits
/// longer is past its caller's patience.
const WEIGHT_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    impl Weigh for usize {
        fn weight(&self) -> usize {
            *self
        }
    }

    #[test]
    fn urgent_jobs_go_first_and_others_keep_their_order() {
        let queue = Queue::new();
        for (job, urgent) in [(1, false), (2, false), (3, true), (4, true)] {
            queue.push(job, urgent).unwrap();
        }
        let order: Vec<usize> = std::iter::from_fn(|| queue.take_if(|_| true)).collect();
        assert_eq!(order, [3, 4, 1, 2]);
    }

    #[test]
    fn a_full_queue_refuses_at_once_and_an_empty_one_takes_any_size() {
        let queue = Queue::new();
        queue.push(2 * WEIGHT_MAX, false).unwrap();
        assert_eq!(queue.push(1, true), Err(Refused::Full));
        assert_eq!(queue.take_if(|_| true), Some(2 * WEIGHT_MAX));
        queue.push(1, true).unwrap();
    }

    #[test]
    fn a_closed_queue_takes_nothing_and_gives_what_it_has() {
        let queue = Queue::new();
        queue.push(1, false).unwrap();
        queue.close();
        assert_eq!(queue.push(2, false), Err(Refused::Closed));
        assert!(matches!(queue.take(None), Found::Job(1)));
        assert!(matches!(queue.take(None), Found::Closed));
    }

    #[test]
    fn a_thread_that_dies_leaves_no_caller_waiting() {
        let queue = Queue::new();
        queue.push(1, false).unwrap();
        let serving = Serving(queue.clone());
        std::thread::spawn(move || {
            let _serving = serving;
            panic!("the thread dies");
        })
        .join()
        .unwrap_err();
        assert_eq!(queue.push(2, false), Err(Refused::Closed));
        assert!(queue.take_if(|_| true).is_none());
    }
}
