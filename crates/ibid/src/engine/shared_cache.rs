//! The cache that all nodes share, if there is one: asked before the store, and never believed beyond what the process's
//! own cache is.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::StoredRecord;
use ibid_core::machine::{self, BeginRequest, Decision, Event, Intent, Verdict};
use ibid_core::record::Record;
use ibid_core::response::{Response, SavedResponse};
use ibid_core::time::Timestamp;
use metrics::counter;
use tokio::time::Instant;

use super::Engine;
use super::begin::DecidedRequest;
use super::cache::may_be_cached;
use crate::front::SharedEntry;
use crate::telemetry;

impl Engine {
    /// Decides on the record that another node has shared: `Replay` or `Mismatch`. Returns `None` if the store has to be
    /// asked.
    pub(super) async fn decide_shared(&self, ask: &Arc<BeginRequest>) -> Option<DecidedRequest> {
        let front = self.front.as_ref()?;
        if !ask.previous.is_empty() {
            // The key may be stored under a previous id, and only the store can tell.
            return None;
        }
        let asked_at = Instant::now();
        let Some(entry) = front.find(ask.id).await else {
            counter!(telemetry::FRONT_LOOKUPS, "outcome" => "miss").increment(1);
            return None;
        };
        let decided = self.decide_entry(ask, entry, asked_at);
        let outcome = if decided.is_some() { "hit" } else { "stale" };
        counter!(telemetry::FRONT_LOOKUPS, "outcome" => outcome).increment(1);
        decided
    }

    fn decide_entry(
        &self,
        ask: &Arc<BeginRequest>,
        entry: SharedEntry,
        asked_at: Instant,
    ) -> Option<DecidedRequest> {
        let SharedEntry { record, response, read_at } = entry;
        if record.id != ask.id || !may_be_cached(&record) {
            return None;
        }
        // The age is taken by the store's clock, and at most for too long. So an entry lives as long as one of this
        // process's cache, whatever the other server's clock and expiry do, and one that is brought back later is not used.
        let now = self.clock.latest_now(Instant::now())?;
        let age = now.since(read_at);
        if read_at > now || age >= self.cache.ttl() || record.is_expired(now) {
            return None;
        }
        let event = Event::Request { ask, role: Intent::ReadOnly };
        let Verdict::Keep(decision @ (Decision::Replay | Decision::Mismatch)) =
            machine::decide(Some(&record), &event, now)
        else {
            return None;
        };
        let stored = StoredRecord { record, response: Some(SavedResponse::Plain(response)), now: read_at };
        // As if this process had read it then: its own cache keeps it no longer than the other node's.
        let at = asked_at.checked_sub(age)?;
        Some(DecidedRequest::without_run(ask, decision, Some(stored), at))
    }

    /// Gives a completed record that was just read or written to the other nodes. `now` is the store's time of that.
    pub(super) fn share(&self, record: &Arc<Record>, response: &Arc<Response>, now: Timestamp) {
        let Some(front) = &self.front else { return };
        if !may_be_cached(record) {
            return;
        }
        let left = record.expires_at.map_or(Duration::MAX, |expires_at| expires_at.since(now));
        let lives = self.cache.ttl().min(left);
        if !lives.is_zero() {
            front
                .put(SharedEntry { record: record.clone(), response: response.clone(), read_at: now }, lives);
        }
    }

    /// Like [`Engine::share`], for a record that the store returned.
    pub(super) fn share_stored(&self, stored: Option<&StoredRecord>) {
        if let Some(stored) = stored
            && let Some(response) = stored.response.as_ref().and_then(SavedResponse::plain)
        {
            self.share(&stored.record, response, stored.now);
        }
    }
}
