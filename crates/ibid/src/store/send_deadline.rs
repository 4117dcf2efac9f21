//! The instant by which a queued change has to be sent. It decides once whether the store sends the change or its caller gives up.
//!
//! T1 (a client's begin) waits in a queue until its time is over; T2 (the store) takes the same begin and sends it. If both went by
//! the clock alone, T1 could report the begin as unsent while T2 writes it, and a later request would find a lease that nothing
//! runs. So both swap one flag, and the first of them decides.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Instant;

use ibid_core::change::Commit;
use ibid_core::store::{REPLY_GRACE, StoreError};
use tokio::sync::oneshot;

/// The limit of one queued change. Its clones share the decision.
#[derive(Clone, Debug)]
pub(super) struct SendDeadline {
    send_by: Instant,
    is_decided: Arc<AtomicBool>,
    /// `true` if the store has claimed the change. It may claim a change again that it could not write.
    is_claimed: bool,
}

impl SendDeadline {
    pub(super) fn new(send_by: Instant) -> SendDeadline {
        SendDeadline { send_by, is_decided: Arc::default(), is_claimed: false }
    }

    /// Returns the instant after which the change is not sent.
    #[cfg_attr(
        not(feature = "redis"),
        expect(dead_code, reason = "the other stores send a change that they have taken at once")
    )]
    pub(super) fn send_by(&self) -> Instant {
        self.send_by
    }

    /// Returns whether the time is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.send_by <= now
    }

    /// Claims the change for sending. Returns `false` if its time is over or its caller has given up: it must not be sent.
    pub(super) fn claim(&mut self, now: Instant) -> bool {
        self.is_claimed = !self.is_over(now) && (self.is_claimed || self.decide());
        self.is_claimed
    }

    /// Gives the change up. Returns `false` if the wait for its reply is not over, or the store has claimed it.
    fn withdraw(&self, now: Instant) -> bool {
        self.send_by + REPLY_GRACE <= now && self.decide()
    }

    fn decide(&self) -> bool {
        !self.is_decided.swap(true, Ordering::AcqRel)
    }
}

/// Waits for the reply to a queued change, and gives the change up when it is polled [`REPLY_GRACE`] after its time. Nothing wakes this
/// for that: the caller has a timer already. Returns `None` if the sender was dropped.
///
/// The store drops late changes itself, as soon as it reaches them. So a change that is given up here waited in a queue that did
/// not move, and its error says nothing in the store's favour: it is unwritten, but it does not count as refused at once.
pub(super) async fn reply_or_withdraw(
    mut reply: oneshot::Receiver<Result<Commit, StoreError>>,
    limit: Option<SendDeadline>,
    (kind, op): (&'static str, &'static str),
) -> Option<Result<Commit, StoreError>> {
    poll_fn(|context| {
        if let Poll::Ready(reply) = Pin::new(&mut reply).poll(context) {
            return Poll::Ready(reply.ok());
        }
        // Tokio's clock, because the caller's timer goes by it.
        let now = tokio::time::Instant::now().into_std();
        match &limit {
            Some(limit) if limit.withdraw(now) => {
                Poll::Ready(Some(Err(StoreError::transient(kind, op, "not sent in time").unwritten())))
            }
            _ => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_change_that_was_not_claimed_in_time_is_given_up() {
        let now = tokio::time::Instant::now().into_std();
        let mut limit = SendDeadline::new(now + Duration::from_secs(1));
        assert!(!limit.withdraw(now + Duration::from_secs(1)), "the store may be about to drop it");
        let (_sender, reply) = oneshot::channel();
        let waiting = reply_or_withdraw(reply, Some(limit.clone()), ("a", "commit"));
        // The timer polls what it bounds once more.
        let late = tokio::time::timeout(Duration::from_secs(1) + REPLY_GRACE, waiting).await.expect("an end");
        let error = late.expect("an answer").expect_err("not sent");
        assert!(error.is_unwritten() && error.is_transient() && !error.is_unsent(), "{error:?}");
        assert!(!limit.claim(now), "the store comes too late");
    }

    #[tokio::test(start_paused = true)]
    async fn a_claimed_change_is_waited_for_after_its_time() {
        let mut limit = SendDeadline::new(tokio::time::Instant::now().into_std() + Duration::from_secs(1));
        assert!(limit.claim(tokio::time::Instant::now().into_std()));
        tokio::time::advance(Duration::from_secs(1) + REPLY_GRACE).await;
        let (sender, reply) = oneshot::channel();
        let waiting = tokio::spawn(reply_or_withdraw(reply, Some(limit), ("a", "commit")));
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        sender.send(Ok(Commit::Conflict(None))).expect("it waits");
        assert!(matches!(waiting.await, Ok(Some(Ok(Commit::Conflict(None))))));
    }
}
