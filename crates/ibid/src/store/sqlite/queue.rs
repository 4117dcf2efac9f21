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

/// Where a job waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Before all others.
    Urgent,
    /// In the order in which they came, together with its neighbours where they fit.
    Usual,
    /// In the order in which they came, by itself: it takes turns with the usual ones, so that neither lane waits for
    /// the whole of the other, and what gathers together there is not cut apart.
    Alone,
}

/// Jobs in three lanes, each in the order in which they came.
pub(super) struct Queue<J> {
    line: Mutex<Line<J>>,
    filled: Condvar,
}

struct Line<J> {
    urgent: VecDeque<J>,
    usual: VecDeque<J>,
    alone: VecDeque<J>,
    /// Whether the next turn is the one of those that go alone.
    alone_next: bool,
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
        Arc::new(Queue { line: Mutex::new(Line::empty()), filled: Condvar::new() })
    }

    /// Adds a job, or refuses it at once: nobody ever waits for room.
    pub(super) fn push(&self, job: J, lane: Lane) -> Result<(), Refused> {
        let mut line = self.line();
        let weight = job.weight();
        if line.closed {
            return Err(Refused::Closed);
        }
        // An empty queue takes a job of any size, or a large one could never be done. What is urgent is a renewal: small,
        // one for each attempt that lives, and refused it would cost an `unknown`.
        let has_room = line.weight == 0 || line.weight.saturating_add(weight) <= WEIGHT_MAX;
        if lane != Lane::Urgent && !has_room {
            return Err(Refused::Full);
        }
        line.weight += weight;
        match lane {
            Lane::Urgent => line.urgent.push_back(job),
            Lane::Usual => line.usual.push_back(job),
            Lane::Alone => line.alone.push_back(job),
        }
        drop(line);
        self.filled.notify_one();
        Ok(())
    }

    /// Waits for a job, for ever or for so long.
    pub(super) fn take(&self, patience: Option<Duration>) -> Found<J> {
        let mut line = self.line();
        loop {
            if let Some(job) = line.next() {
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

    /// The next usual job if it is there and `fits`, and nothing urgent waits.
    pub(super) fn take_if(&self, fits: impl FnOnce(&J) -> bool) -> Option<J> {
        let mut line = self.line();
        let job = if line.urgent.is_empty() { line.usual.pop_front_if(|job| fits(job)) } else { None };
        job.map(|job| line.out(job))
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
    fn empty() -> Line<J> {
        let (urgent, usual, alone) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Line { urgent, usual, alone, alone_next: false, weight: 0, closed: false }
    }

    fn next(&mut self) -> Option<J> {
        if let Some(job) = self.urgent.pop_front() {
            return Some(self.out(job));
        }
        let alone = if self.alone_next { !self.alone.is_empty() } else { self.usual.is_empty() };
        let job = if alone { self.alone.pop_front() } else { self.usual.pop_front() }?;
        self.alone_next = !alone;
        Some(self.out(job))
    }

    fn out(&mut self, job: J) -> J {
        self.weight -= job.weight();
        job
    }

    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.usual.is_empty() && self.alone.is_empty()
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
        let left = std::mem::replace(&mut *self.0.line(), Line { closed: true, ..Line::empty() });
        // Dropping a job drops its reply, which its caller sees. Not under the lock: a job holds what its caller gave
        // it, perhaps the store itself.
        drop(left);
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
        for (job, lane) in [(1, Lane::Usual), (2, Lane::Usual), (3, Lane::Urgent), (4, Lane::Urgent)] {
            queue.push(job, lane).unwrap();
        }
        assert_eq!(queue.take_if(|_| true), None, "an urgent one ends a batch");
        assert_eq!(order(&queue), [3, 4, 1, 2]);
    }

    #[test]
    fn those_that_go_alone_take_turns_and_cut_no_batch() {
        let queue = Queue::new();
        for (job, lane) in [(1, Lane::Alone), (2, Lane::Usual), (3, Lane::Alone), (4, Lane::Usual)] {
            queue.push(job, lane).unwrap();
        }
        for (job, lane) in [(5, Lane::Usual), (6, Lane::Alone), (7, Lane::Alone)] {
            queue.push(job, lane).unwrap();
        }
        assert!(matches!(queue.take(None), Found::Job(2)));
        assert_eq!(queue.take_if(|_| true), Some(4), "its neighbours, as if nobody stood between");
        assert_eq!(order(&queue), [1, 5, 3, 6, 7]);
    }

    fn order(queue: &Queue<usize>) -> Vec<usize> {
        let next = || match queue.take(Some(Duration::ZERO)) {
            Found::Job(job) => Some(job),
            Found::Nothing | Found::Closed => None,
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_full_queue_refuses_at_once_and_an_empty_one_takes_any_size() {
        let queue = Queue::new();
        queue.push(2 * WEIGHT_MAX, Lane::Usual).unwrap();
        for lane in [Lane::Usual, Lane::Alone] {
            assert_eq!(queue.push(1, lane), Err(Refused::Full));
        }
        assert_eq!(queue.take_if(|_| true), Some(2 * WEIGHT_MAX));
        queue.push(1, Lane::Usual).unwrap();
    }

    #[test]
    fn a_full_queue_takes_what_is_urgent() {
        let queue = Queue::new();
        queue.push(2 * WEIGHT_MAX, Lane::Usual).unwrap();
        queue.push(1, Lane::Urgent).unwrap();
        assert_eq!(order(&queue), [1, 2 * WEIGHT_MAX]);
    }

    #[test]
    fn a_closed_queue_takes_nothing_and_gives_what_it_has() {
        let queue = Queue::new();
        queue.push(1, Lane::Usual).unwrap();
        queue.close();
        assert_eq!(queue.push(2, Lane::Usual), Err(Refused::Closed));
        assert!(matches!(queue.take(None), Found::Job(1)));
        assert!(matches!(queue.take(None), Found::Closed));
    }

    #[test]
    fn a_thread_that_dies_leaves_no_caller_waiting() {
        let queue = Queue::new();
        queue.push(1, Lane::Usual).unwrap();
        let serving = Serving(queue.clone());
        std::thread::spawn(move || {
            let _serving = serving;
            panic!("the thread dies");
        })
        .join()
        .unwrap_err();
        assert_eq!(queue.push(2, Lane::Usual), Err(Refused::Closed));
        assert!(queue.take_if(|_| true).is_none());
    }
}
