//! Runs accepted (202) requests: claims the `pending` record under a lease and runs the stored request like any other. Any
//! number of nodes may do so at once: of those that see a record, one claims it.
//!
//! This file must not depend on HTTP: the registered [`Resume`] reads and runs the request.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ibid_core::change::StoredRecord;
use ibid_core::machine::{Decision, Event};
use ibid_core::record::State;
use ibid_core::store::StoreError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use super::run_round;
use super::stored_request::{Resume, StoredRequest, release};
use crate::backoff::spread;
use crate::engine::GiveUp;
use crate::failpoint;
use crate::ibid::Ibid;

/// Bounds how many accepted requests run in this process, and wakes the deliverer when another is accepted.
pub(crate) struct Deliveries {
    permits: Arc<Semaphore>,
    accepted: Notify,
}

impl Default for Deliveries {
    fn default() -> Self {
        Deliveries { permits: Arc::new(Semaphore::new(DELIVERIES_MAX)), accepted: Notify::new() }
    }
}

impl Deliveries {
    /// Tells the deliverer that this process has accepted a request, so that it does not wait for its next poll.
    pub(crate) fn wake(&self) {
        self.accepted.notify_one();
    }
}

/// Runs accepted requests until dropped.
///
/// Requests that this process accepts are seen at once. The next poll finds requests that other nodes left behind, and
/// requests whose pause between two tries is over.
pub(super) async fn run(ibid: &Ibid) {
    let deliveries = &ibid.upkeep().deliveries;
    loop {
        // Registered before the poll, so that a request accepted meanwhile is not missed.
        let mut accepted = pin!(deliveries.accepted.notified());
        accepted.as_mut().enable();
        if let Some(runner) = ibid.upkeep().resumes.runner() {
            let claimed = run_round(ibid, "deliverer", deliver_once(ibid, &runner)).await;
            if claimed > 0 {
                continue;
            }
        }
        let _ = tokio::time::timeout(spread(POLL_EVERY), accepted).await;
    }
}

/// Claims due records, as many as there are permits, and runs their requests. Returns how many were claimed.
async fn deliver_once(ibid: &Ibid, runner: &Arc<dyn Resume>) -> Result<u64, StoreError> {
    let permits = &ibid.upkeep().deliveries.permits;
    // Waits only while all permits are taken. The semaphore is never closed.
    drop(permits.acquire().await);
    let free = u32::try_from(permits.available_permits()).unwrap_or(DELIVERY_BATCH).clamp(1, DELIVERY_BATCH);
    let due = ibid.store().due(State::Pending, None, free).await?.items;
    let claims = due.into_iter().filter_map(|stored| {
        let permit = permits.clone().try_acquire_owned().ok()?;
        let (reply, is_claimed) = oneshot::channel();
        // On a separate task, because this one may be dropped at any moment: a claim whose request is not run lapses.
        tokio::spawn(deliver(ibid.clone(), runner.clone(), stored, permit, reply));
        Some(is_claimed)
    });
    // All at once, so that they share commits.
    let claims = join_all(claims.collect::<Vec<_>>()).await;
    Ok(claims.into_iter().filter(|is_claimed| *is_claimed == Ok(true)).count() as u64)
}

/// Claims one record and runs its request to the end. Replies as soon as it is known whether the claim succeeded.
async fn deliver(
    ibid: Ibid,
    runner: Arc<dyn Resume>,
    stored: StoredRecord,
    permit: OwnedSemaphorePermit,
    is_claimed: oneshot::Sender<bool>,
) {
    // A shutdown waits for this, because a record that is being claimed is about to run.
    let begins = ibid.engine().drain.track_begin();
    let Ok(request) = StoredRequest::load(&ibid, &*runner, &stored.record).await else { return };
    let generation = stored.record.birth;
    failpoint::at("deliver.before").await;
    let at = Instant::now();
    let claim =
        ibid.engine().write_until_done(Some(stored), GiveUp::Soon, |nonce| Event::Claim { nonce }).await;
    // If the receiver is gone, the chore is being stopped.
    let _ = is_claimed.send(claim.decision != Decision::Ignored && claim.refused.is_none());
    let (Decision::Run { after }, Some(claimed)) = (claim.decision, claim.stored) else { return };
    failpoint::at("deliver.after").await;
    match request {
        Some(request) if request.is_of(&claimed.record) => {
            let run = request.run(&ibid, &*runner, claimed, after, at);
            drop(begins);
            run.await;
        }
        _ => {
            if claimed.record.birth == generation {
                let record = claimed.record.id.short();
                tracing::error!(%record, "stored request of an accepted record is unreadable; releasing it");
            }
            release(&ibid, claimed).await;
        }
    }
    drop(permit);
}

/// Accepted requests that one process runs at once: about as many connections as an upstream accepts from one client. With
/// the largest default body they hold as many megabytes.
const DELIVERIES_MAX: usize = 256;

/// Accepted records that are read at once. Few, because their requests are read too, and another node may be reading the
/// same ones.
const DELIVERY_BATCH: u32 = 64;

/// Time between two polls if this process accepts nothing, give or take a quarter. It bounds how long records of a crashed
/// node, or the end of a pause, go unnoticed. A poll that finds nothing reads one page of an index.
const POLL_EVERY: Duration = Duration::from_secs(1);
