//! Runs what was accepted to be run without its client: finds what waits, takes it under a lease, and lets it run like
//! any other request. Any number of nodes may do so at once: of those that see a record, one takes it.
//!
//! It must not know HTTP; whoever runs requests without their clients here ([`Resume`]) does.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ibid_core::change::{BodyKind, Stored};
use ibid_core::machine::{Decision, Event};
use ibid_core::record::{ErrorCode, State};
use ibid_core::store::StoreError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use super::{Resume, done};
use crate::attempt::Attempt;
use crate::backoff::spread;
use crate::engine::GiveUp;
use crate::failpoint;
use crate::ibid::Ibid;

/// How many accepted requests run in this process, and the news that another was accepted.
pub(crate) struct Deliveries {
    places: Arc<Semaphore>,
    news: Notify,
}

impl Default for Deliveries {
    fn default() -> Self {
        Deliveries { places: Arc::new(Semaphore::new(DELIVERIES_MAX)), news: Notify::new() }
    }
}

impl Deliveries {
    /// Something was accepted here: the deliverer need not wait for its next look.
    pub(crate) fn wake(&self) {
        self.news.notify_one();
    }
}

/// Delivers until dropped. What this process accepts is seen at once; what others left behind, and what waits for its
/// next try, at the next look.
pub(super) async fn run(ibid: &Ibid) {
    let deliveries = &ibid.upkeep().deliveries;
    loop {
        // Registered before the look, so that what is accepted meanwhile is not missed.
        let mut news = pin!(deliveries.news.notified());
        news.as_mut().enable();
        if let Some(runner) = ibid.upkeep().resumes.get() {
            let taken = deliver_once(ibid, &runner).await;
            let more = matches!(taken, Ok(1..));
            done(ibid, "deliverer", taken);
            if more {
                continue;
            }
        }
        let _ = tokio::time::timeout(spread(LOOK_EVERY), news).await;
    }
}

/// Takes what is due, as far as there are places, and lets it run. How many were taken.
async fn deliver_once(ibid: &Ibid, runner: &Arc<dyn Resume>) -> Result<u64, StoreError> {
    let places = &ibid.upkeep().deliveries.places;
    // It is closed by nobody; at once unless all are taken.
    drop(places.acquire().await);
    let free = u32::try_from(places.available_permits()).unwrap_or(DELIVERY_BATCH).clamp(1, DELIVERY_BATCH);
    let due = ibid.store().due(State::Pending, free).await?;
    let taken = due.into_iter().filter_map(|stored| {
        let place = places.clone().try_acquire_owned().ok()?;
        let (reply, taken) = oneshot::channel();
        // Apart from this task, which may be dropped at any moment: a claim that nobody acts on is one that lapses.
        tokio::spawn(deliver(ibid.clone(), runner.clone(), stored, place, reply));
        Some(taken)
    });
    // At once, so that they share commits.
    let taken = join_all(taken.collect::<Vec<_>>()).await;
    Ok(taken.into_iter().filter(|taken| *taken == Ok(true)).count() as u64)
}

/// Takes one record and runs its request to the end. Tells as soon as it is known whether it was this one's to take.
async fn deliver(
    ibid: Ibid,
    runner: Arc<dyn Resume>,
    stored: Stored,
    place: OwnedSemaphorePermit,
    taken: oneshot::Sender<bool>,
) {
    // A shutdown waits for it: what is being claimed is about to run.
    let begins = ibid.engine().drain.track_begin();
    let Ok(bodies) = ibid.store().bodies(stored.record.id, stored.record.birth).await else { return };
    let request =
        bodies.into_iter().find(|(kind, _)| *kind == BodyKind::Request.code()).map(|(_, data)| data);
    let ask = request.as_ref().and_then(|request| runner.ask(&stored.record, request));
    let birth = stored.record.birth;
    failpoint::at("deliver.before").await;
    let at = Instant::now();
    let claim =
        ibid.engine().write_until_done(Some(stored), GiveUp::Soon, |nonce| Event::Claim { nonce }).await;
    // Whoever no longer listens is being stopped.
    let _ = taken.send(claim.decision != Decision::Ignored && claim.refused.is_none());
    let (Decision::Run { after }, Some(stored)) = (claim.decision, claim.stored) else { return };
    failpoint::at("deliver.after").await;
    // Another generation may have begun while this one was looked at: what was read is not its request. It goes back.
    let is_same = stored.record.birth == birth;
    match (ask, request) {
        (Some(ask), Some(request)) if is_same => {
            let ask = Arc::new(ask);
            let attempt = Attempt::new(ibid.clone(), ask.clone(), stored.record, after, at).of_upkeep();
            drop(begins);
            runner.run(attempt, ask, request).await;
        }
        _ => {
            if is_same {
                tracing::error!(record = %stored.record.id.short(), "the request of an accepted record can't be read");
            }
            let begun = stored.record.clone();
            let event = |nonce| Event::NotExecuted { begun: &begun, nonce, why: ErrorCode::NotSent };
            ibid.engine().write_until_done(Some(stored), GiveUp::Late, event).await;
        }
    }
    drop(place);
}

/// Accepted requests that one process runs at once: so many connections an upstream takes from one client, and with
/// the largest default body they hold as many megabytes.
const DELIVERIES_MAX: usize = 256;

/// Accepted records read at once: what they keep is read with them, and a second node may be reading the same.
const DELIVERY_BATCH: u32 = 64;

/// From one look to the next where nothing is heard, give or take a quarter. It bounds how long what a crashed node left
/// behind, or the end of a pause, goes unnoticed; a look that finds nothing reads one page of an index.
const LOOK_EVERY: Duration = Duration::from_secs(1);
