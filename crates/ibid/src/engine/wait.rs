//! One who only looks: waits for the end of a record that somebody else runs, without asking for anything.

use std::time::Duration;

use ibid_core::change::Stored;
use ibid_core::record::State;
use ibid_core::scope::{RecordId, Tenant};
use ibid_core::store::StoreError;
use tokio::time::Instant;

use super::{Ibid, POLL_MAX, POLL_MIN};
use crate::backoff::Backoff;

impl Ibid {
    /// What is stored, once nobody is at it and nobody is to come, or else after `up_to`.
    pub(crate) async fn watch(
        &self,
        id: RecordId,
        tenant: &Tenant,
        up_to: Duration,
    ) -> Result<Option<Stored>, StoreError> {
        let until = Instant::now() + up_to;
        // As bounded as the duplicates that wait: past the bound the state is told as it is.
        let place = (!up_to.is_zero()).then(|| self.inner.waiters.enter(id, tenant)).flatten();
        let mut backoff = Backoff::new(POLL_MIN, POLL_MAX);
        loop {
            let Some(place) = &place else { return self.inner.load(id).await };
            // Registered before the look, so that news which comes in between is not missed.
            let mut news = std::pin::pin!(place.news.notified());
            news.as_mut().enable();
            let stored = self.inner.load(id).await?;
            let open = stored.as_ref().is_some_and(|stored| {
                stored.record.identity.tenant == *tenant
                    && matches!(stored.record.state, State::Pending | State::InProgress)
            });
            let now = Instant::now();
            if !open || now >= until {
                return Ok(stored);
            }
            // Other nodes do not call here, so a look from time to time stands in for their news.
            let nap = backoff.next().min(until - now);
            let _ = tokio::time::timeout(nap, news).await;
        }
    }
}
