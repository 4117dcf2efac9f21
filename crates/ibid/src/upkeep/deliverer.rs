//! Runs accepted (202) requests: claims the `pending` record under a lease and runs the stored request like any other. Any
//! number of nodes may do so at once: of those that see a record, one claims it.
//!
//! This file must not depend on HTTP: the registered [`Resume`] reads and runs the request.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use ibid_core::change::StoredRecord;
use ibid_core::machine::{self, Decision, Event};
use ibid_core::store::{Cursor, Page, StoreError};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::run_round;
use super::stored_request::{Resume, StoredRequest, release};
use crate::backoff::spread;
use crate::engine::{GiveUp, TenantBound, TenantPermit};
use crate::failpoint;
use crate::ibid::Ibid;

/// Bounds how many accepted requests run in this process, and wakes the deliverer when another may be run.
pub(crate) struct Deliveries {
    slots: TenantBound,
    /// Deliveries that ended since the last round.
    ended: AtomicU32,
    wake: Notify,
    /// The scan behind requests that can't be run now.
    scan: Mutex<BacklogScan>,
}

/// The scan behind the first due records, while those can't be run here.
#[derive(Default)]
struct BacklogScan {
    /// Cursor from which it continues; `None`: behind the first records.
    cursor: Option<Cursor>,
    /// Instant of the last step.
    at: Option<Instant>,
}

impl Default for Deliveries {
    fn default() -> Self {
        Deliveries {
            slots: TenantBound::new(DELIVERIES_MAX),
            ended: AtomicU32::new(0),
            wake: Notify::new(),
            scan: Mutex::default(),
        }
    }
}

impl Deliveries {
    /// Tells the deliverer that this process has accepted a request, so that it does not wait for its next poll.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Notes that a delivery has ended. After some of them the deliverer looks for more.
    fn note_end(&self) {
        if self.ended.fetch_add(1, Ordering::SeqCst) + 1 == ENDED_MIN {
            self.wake();
        }
    }

    /// Returns whether the next step of the scan is due, and notes that it is taken.
    fn takes_scan_step(&self) -> bool {
        let (mut scan, now) = (self.scan.lock(), Instant::now());
        let is_due = scan.at.is_none_or(|at| now.duration_since(at) >= POLL_EVERY);
        if is_due {
            scan.at = Some(now);
        }
        is_due
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
        let mut woken = pin!(deliveries.wake.notified());
        woken.as_mut().enable();
        if let Some(runner) = ibid.upkeep().resumes.runner() {
            let claimed = run_round(ibid, "deliverer", deliver_once(ibid, &runner)).await;
            if claimed > 0 {
                continue;
            }
        }
        let _ = tokio::time::timeout(spread(POLL_EVERY), woken).await;
    }
}

/// Claims due records, as many as there is room for, and runs their requests. Returns how many were claimed.
async fn deliver_once(ibid: &Ibid, runner: &Arc<dyn Resume>) -> Result<u64, StoreError> {
    let deliveries = &ibid.upkeep().deliveries;
    deliveries.ended.store(0, Ordering::SeqCst);
    let free = u32::try_from(deliveries.slots.free()).unwrap_or(DELIVERY_BATCH).min(DELIVERY_BATCH);
    if free == 0 {
        return Ok(0);
    }
    let first = due_page(ibid, None, free).await?;
    let due = first.items.len() as u64;
    let mut claimed = claim_all(ibid, runner, first.items).await;
    // Records of a tenant that has its share, and those whose request can't be loaded, stay first in the order.
    if claimed < due
        && let Some(behind) = first.next
        && deliveries.takes_scan_step()
    {
        claimed += claim_behind(ibid, runner, behind).await?;
    }
    Ok(claimed)
}

/// Returns accepted requests that are due.
async fn due_page(ibid: &Ibid, after: Option<Cursor>, limit: u32) -> Result<Page<StoredRecord>, StoreError> {
    ibid.engine().due(machine::DELIVERED_STATE, after, limit).await
}

/// Claims records further behind. The next call continues where this one ends, and starts over after the last record.
async fn claim_behind(ibid: &Ibid, runner: &Arc<dyn Resume>, first: Cursor) -> Result<u64, StoreError> {
    let deliveries = &ibid.upkeep().deliveries;
    let mut after = deliveries.scan.lock().cursor.take().or(Some(first));
    let mut claimed = 0;
    for _ in 0..SCAN_BATCHES_MAX {
        let Page { items, next } = due_page(ibid, after.clone(), SCAN_BATCH).await?;
        claimed += claim_all(ibid, runner, items).await;
        if deliveries.slots.free() == 0 {
            // The rest of this page had no chance.
            break;
        }
        after = next;
        if after.is_none() {
            break;
        }
    }
    deliveries.scan.lock().cursor = after;
    Ok(claimed)
}

/// Claims the records for which there is room, and runs their requests. Returns how many were claimed.
async fn claim_all(ibid: &Ibid, runner: &Arc<dyn Resume>, due: Vec<StoredRecord>) -> u64 {
    let claims = due.into_iter().filter_map(|stored| {
        let slots = &ibid.upkeep().deliveries.slots;
        let permit = slots.take(&stored.record.identity.tenant, 1).ok()?;
        let (reply, is_claimed) = oneshot::channel();
        // On a separate task, because this one may be dropped at any moment: a claim whose request is not run lapses.
        tokio::spawn(deliver(ibid.clone(), runner.clone(), stored, permit, reply));
        Some(is_claimed)
    });
    // All at once, so that they share commits.
    let claims = join_all(claims.collect::<Vec<_>>()).await;
    claims.into_iter().filter(|is_claimed| *is_claimed == Ok(true)).count() as u64
}

/// Claims one record and runs its request to the end. Replies as soon as it is known whether the claim succeeded.
async fn deliver(
    ibid: Ibid,
    runner: Arc<dyn Resume>,
    stored: StoredRecord,
    permit: TenantPermit,
    is_claimed: oneshot::Sender<bool>,
) {
    // A shutdown waits for this, because a record that is being claimed is about to run.
    let begins = ibid.engine().drain.track();
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
    ibid.upkeep().deliveries.note_end();
}

/// Accepted requests that one process runs at once: about as many connections as an upstream accepts from one client. With
/// the largest default body they hold as many megabytes. One tenant may have half of them: its upstream may hang.
const DELIVERIES_MAX: usize = 256;

/// Accepted records that are read at once. Few, because their requests are read too, and another node may be reading the
/// same ones.
const DELIVERY_BATCH: u32 = 64;

/// Deliveries that end before the deliverer looks for more, if its next poll does not come first. Each look reads some records
/// of tenants that have their share.
const ENDED_MIN: u32 = 8;

/// Records that are read at once behind those that can't be run here.
const SCAN_BATCH: u32 = 256;

/// Batches in one step of that scan, which is taken once per [`POLL_EVERY`]: four thousand records a second take some percent of
/// a core, and ten thousand requests of one tenant hold up another's for some seconds.
const SCAN_BATCHES_MAX: u32 = 16;

/// Time between two polls if this process accepts nothing, give or take a quarter. It bounds how long records of a crashed
/// node, or the end of a pause, go unnoticed. A poll that finds nothing reads one page of an index.
const POLL_EVERY: Duration = Duration::from_secs(1);
