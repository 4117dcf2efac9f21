//! Work that goes on although its caller has gone. The caller itself carries it out for as long as it stays, and only what
//! is left when it goes becomes a task: a task for each begin and each finish would cost more than the rest of them.
//!
//! It must not know what the work is. Work under way is held up by a caller that neither goes on nor goes away.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Carries out `work`, to its end whatever becomes of the caller: then in `runtime`. None if it panics, which harms nobody
/// else.
pub(crate) fn apart<F>(runtime: &Handle, work: F) -> Apart<'_, F>
where
    F: Future<Output: Send> + Send + 'static,
{
    Apart { work: Some(Box::pin(work)), runtime }
}

/// Made by [`apart`].
pub(crate) struct Apart<'r, F>
where
    F: Future<Output: Send> + Send + 'static,
{
    /// None once it has ended.
    work: Option<Pin<Box<F>>>,
    /// Where it goes on. Whoever drops it may be outside of every runtime.
    runtime: &'r Handle,
}

impl<F> Future for Apart<'_, F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = &mut self.work else { return Poll::Ready(None) };
        // What has panicked is never polled again.
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        if let Ok(Poll::Pending) = polled {
            return Poll::Pending;
        }
        self.work = None;
        polled.map_or(Poll::Ready(None), |ended| ended.map(Some))
    }
}

impl<F> Drop for Apart<'_, F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            // Nobody waits for it. A runtime that is ending drops it, as it does every task.
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
    async fn work_ends_with_its_caller_and_without_it() {
        let runtime = Handle::current();
        assert_eq!(apart(&runtime, async { 7 }).await, Some(7));

        let (go, gone) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let mut work = apart(&runtime, async move {
            gone.await.expect("a word");
            done.send(()).expect("somebody listens");
        });
        assert!((&mut work).now_or_never().is_none());
        // By a thread that knows of no runtime.
        std::thread::scope(|scope| drop(scope.spawn(move || drop(work))));
        go.send(()).expect("it goes on");
        is_done.await.expect("it has ended");
    }

    #[tokio::test]
    async fn work_that_panics_leaves_its_caller_alone() {
        let runtime = Handle::current();
        let mut work = apart(&runtime, async { panic!("for a test") });
        assert_eq!((&mut work).await, None::<()>);
        assert_eq!(work.await, None);
    }
}
