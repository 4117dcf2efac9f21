//! Expires unknown outcomes that nothing settled within `unknown_retention`, if the route sets one.

use ibid_core::change::Commit;
use ibid_core::effect::EffectFilter;
use ibid_core::machine::{self, Event, Verdict};
use ibid_core::record::{Record, State};
use ibid_core::store::{Store, StoreError};
use metrics::counter;

use crate::outbox::store_tx;
use crate::random::nonce;
use crate::telemetry;

/// Expires records that are past their `unknown_retention` and have no open effect. Returns how many.
///
/// Writes to the store directly, not through the engine. A duplicate that waits in this process notices at its next poll.
pub(super) async fn expire_unknown(store: &dyn Store) -> Result<u64, StoreError> {
    let (mut expired, mut after) = (0, None);
    for _ in 0..BATCHES_MAX {
        let page = store.due(State::Unknown, after, BATCH).await?;
        after = page.next;
        for stored in page.items {
            let event = Event::Outlived { nonce: nonce() };
            let verdict = machine::decide(Some(&stored.record), &event, stored.now);
            let Verdict::Write(change, _) = verdict else { continue };
            if has_open_effect(store, &stored.record).await? {
                continue;
            }
            match store.commit(change, None).await? {
                Commit::Done(_) => expired += 1,
                // Another process was first, or the record was settled.
                Commit::Conflict(_) => continue,
            }
            let route = stored.record.policy.route.clone().unwrap_or_else(|| "*".to_owned());
            tracing::warn!(record = %stored.record.id.short(), %route, "unknown outcome expired after `unknown_retention`");
            counter!(telemetry::UNKNOWN_EXPIRED, "route" => route).increment(1);
        }
        if after.is_none() {
            break;
        }
    }
    Ok(expired)
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

/// Batches in one round of the reaper; the rest waits for the next round.
const BATCHES_MAX: u32 = 40;

/// Effects of one record that are read.
const EFFECTS_MAX: u32 = 1000;
