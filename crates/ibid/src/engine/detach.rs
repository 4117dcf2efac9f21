//! Runs a future to completion even if its caller is dropped.
//!
//! The caller's task polls the future for as long as it lives. If the caller is dropped midway, the rest is spawned: a
//! task for each begin and each finish would cost more than the rest of them.
//!
//! Note: a caller that stops polling without dropping the future stalls the work.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Runs `work` on the caller's task, and in `runtime` if the caller is dropped before it ends. Returns `None` if `work`
/// panics; the panic goes no further.
pub(crate) fn run_to_completion<F>(runtime: &Handle, work: F) -> RunToCompletion<'_, F>
where
    F: Future<Output: Send> + Send + 'static,
{
    RunToCompletion { work: Some(Box::pin(work)), runtime }
}

/// The future of [`run_to_completion`].
pub(crate) struct RunToCompletion<'r, F>
where
    F: Future<Output: Send> + Send + 'static,
{
    /// `None` once the work has ended.
    work: Option<Pin<Box<F>>>,
    /// The runtime that takes the rest over. The thread that drops the future may be outside of every runtime.
    runtime: &'r Handle,
}

impl<F> Future for RunToCompletion<'_, F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = &mut self.work else { return Poll::Ready(None) };
        // Unwind safety: work that has panicked is never polled again.
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        if let Ok(Poll::Pending) = polled {
            return Poll::Pending;
        }
        self.work = None;
        polled.map_or(Poll::Ready(None), |ended| ended.map(Some))
    }
}

impl<F> Drop for RunToCompletion<'_, F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            // Not joined. A runtime that shuts down drops it, as it does every task.
            drop(self.runtime.spawn(work));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn work_ends_with_or_without_its_caller() {
        let runtime = Handle::current();
        assert_eq!(run_to_completion(&runtime, async { 7 }).await, Some(7));

        let (go, gone) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let mut work = run_to_completion(&runtime, async move {
            gone.await.expect("a signal");
            done.send(()).expect("the test listens");
        });
        assert!((&mut work).now_or_never().is_none());
        // By a thread outside of every runtime.
        std::thread::scope(|scope| drop(scope.spawn(move || drop(work))));
        go.send(()).expect("the work continues");
        is_done.await.expect("the work has ended");
    }

    #[tokio::test]
    async fn work_that_panics_leaves_its_caller_alone() {
        let runtime = Handle::current();
        let mut work = run_to_completion(&runtime, async { panic!("for a test") });
        assert_eq!((&mut work).await, None::<()>);
        assert_eq!(work.await, None);
    }
}
