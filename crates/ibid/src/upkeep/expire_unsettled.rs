//! Settles records that nothing settled in their time: accepted requests that were never claimed become a stored 408, and
//! unknown outcomes expire after `unknown_retention`, if the route sets one.
//!
//! It writes to the store directly, not through the engine, so that `reap_store` needs none. A duplicate that waits in this
//! process notices at its next poll.

use std::time::Duration;

use ibid_core::change::{Commit, StoredRecord};
use ibid_core::effect::EffectFilter;
use ibid_core::machine::{self, Event, Verdict};
use ibid_core::record::{Record, State};
use ibid_core::store::{Cursor, Store, StoreError};
use metrics::counter;
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::engine::{no_reply, read_due};
use crate::outbox::store_tx;
use crate::random::nonce;
use crate::telemetry;

/// Cursors of this process into due records, most of which have to stay. A round continues where the last one ended.
#[derive(Debug, Default)]
pub(super) struct OverdueCursors {
    pending: Mutex<Option<Cursor>>,
    unknown: Mutex<Option<Cursor>>,
}

/// Settles records whose time is over. Returns how many. With cursors it reads a bounded number of records, otherwise all.
///
/// A record that can't be written now, because its row is locked or the store refuses it, is passed over.
pub(super) async fn settle_overdue(
    store: &dyn Store,
    cursors: Option<&OverdueCursors>,
) -> Result<u64, StoreError> {
    let [pending, unknown] = machine::OVERDUE_STATES;
    let unclaimed = settle_all(store, pending, cursors.map(|cursors| &cursors.pending)).await;
    let outlived = settle_all(store, unknown, cursors.map(|cursors| &cursors.unknown)).await;
    Ok(unclaimed? + outlived?)
}

async fn settle_all(
    store: &dyn Store,
    state: State,
    saved: Option<&Mutex<Option<Cursor>>>,
) -> Result<u64, StoreError> {
    let (mut settled, mut batches) = (0, 0);
    let mut after = saved.and_then(|saved| saved.lock().clone());
    loop {
        let page = read_due(store, state, after, BATCH).await?;
        for stored in page.items {
            settled += u64::from(settle(store, &stored).await?);
        }
        if let Some(saved) = saved {
            saved.lock().clone_from(&page.next);
        }
        after = page.next;
        batches += 1;
        if after.is_none() || saved.is_some() && batches == BATCHES_MAX {
            return Ok(settled);
        }
    }
}

/// Settles one record if its time is over. Returns whether it did.
async fn settle(store: &dyn Store, stored: &StoredRecord) -> Result<bool, StoreError> {
    let nonce = nonce();
    let (record, is_unknown) = (&*stored.record, stored.record.state.is_unknown());
    let event = if is_unknown { Event::Outlived { nonce } } else { Event::NeverClaimed { nonce } };
    let Verdict::Write(change, _) = machine::decide(Some(record), &event, stored.now) else {
        return Ok(false);
    };
    if is_unknown && has_open_effect(store, record).await? {
        return Ok(false);
    }
    let short = record.id.short();
    // A commit that is dropped here may still happen. The next round reads the record again.
    let commit = timeout(COMMIT_FOR_MAX, store.commit(change, None)).await;
    match commit.unwrap_or_else(|_| Err(no_reply(store, "settle an overdue record"))) {
        Ok(Commit::Done(_)) => {}
        // Another process was first, or the record was claimed or settled.
        Ok(Commit::Conflict(_)) => return Ok(false),
        // The next round tries it again, and this one continues with the others.
        Err(error) if error.is_unwritten() || !error.is_transient() => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(record = %short, error, "overdue record not settled; retried later");
            return Ok(false);
        }
        Err(error) => return Err(error),
    }
    if is_unknown {
        let route = record.policy.route.clone().unwrap_or_else(|| "*".to_owned());
        tracing::warn!(record = %short, %route, "unknown outcome expired after `unknown_retention`");
        counter!(telemetry::UNKNOWN_EXPIRED, "route" => route).increment(1);
    }
    Ok(true)
}

/// Returns whether an effect of this record is neither done nor discarded. The record gets no new effects, because its
/// attempt is over.
async fn has_open_effect(store: &dyn Store, record: &Record) -> Result<bool, StoreError> {
    let filter = EffectFilter::default().with(|filter| {
        filter.record = Some(record.id);
        filter.limit = EFFECTS_MAX;
    });
    let page = store_tx::list(store, filter).await?.unwrap_or_default();
    // A record with more effects, or with one that a newer version of ibid wrote, is left alone.
    let is_partial = page.next.is_some() || page.unreadable > 0;
    Ok(is_partial || page.effects.iter().any(|effect| !effect.state.is_final()))
}

/// Records read at once.
const BATCH: u32 = 256;

/// Batches of each state in one round of the reaper: ten thousand records are read in about a tenth of a second. The next round
/// continues behind them.
const BATCHES_MAX: u32 = 40;

/// Longest commit of one record. The stores bound a slow commit themselves and sooner; this is for one that does not answer at all,
/// which must not end the reaper.
const COMMIT_FOR_MAX: Duration = Duration::from_secs(30);

/// Effects of one record that are read.
const EFFECTS_MAX: u32 = 1000;
