//! Many records at once: what an act would change is shown first, and the act names what it was shown, so that it can't
//! hit more.

use futures_util::StreamExt;
use futures_util::stream;
use ibid_core::act::Act;
use ibid_core::change::Stored;
use ibid_core::machine::{self, Event, Finder, Found, Verdict};
use ibid_core::record::{Nonce, Version};
use ibid_core::scope::RecordId;
use ibid_core::store::{Filter, StoreError};

use super::{Operator, Refused};

/// What is done to each record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// It is resolved so.
    Resolve(Found),
    /// It is a dead letter no longer, and stays as it is.
    Seen,
    /// Its answer is forgotten.
    Forget,
}

/// What a deed would change.
#[derive(Clone, Debug)]
pub struct Preview {
    /// The records that it would change, at most [`BULK_MAX`].
    pub records: Vec<Stored>,
    /// Among those looked at, how many fit and can't be changed so.
    pub left_alone: u64,
    /// The cursor of the next preview, if more records fit.
    pub next: Option<RecordId>,
}

/// A record as it was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Which.
    pub id: RecordId,
    /// At which Version.
    pub version: Version,
}

impl Operator {
    /// What `deed` would change of the records that fit. Writes nothing.
    pub async fn preview(&self, filter: Filter, deed: &Deed) -> Result<Preview, StoreError> {
        // What would be written does not depend on who writes it.
        let nobody = Act::new("nobody", "a preview").expect("a name and a reason");
        let act = &nobody;
        let page = self.find(Filter { limit: filter.limit.min(BULK_MAX), ..filter }).await?;
        let looked_at = page.records.len();
        let would = |stored: &Stored| {
            let event = match deed {
                Deed::Resolve(found) => Event::Found {
                    nonce: Nonce(0),
                    by: Finder::Operator(act),
                    what: found,
                    as_of: stored.now,
                    jitter: 0.0,
                },
                Deed::Seen => Event::Seen { nonce: Nonce(0), act },
                Deed::Forget => Event::Forget { nonce: Nonce(0), act },
            };
            matches!(machine::decide(Some(&stored.record), &event, stored.now), Verdict::Write(..))
        };
        let records: Vec<Stored> = page.records.into_iter().filter(would).collect();
        Ok(Preview { left_alone: (looked_at - records.len()) as u64, records, next: page.next })
    }

    /// Does it to each of these, unless it has changed since it was shown; what came of each, in their order. Of more
    /// than [`BULK_MAX`] only the first are touched.
    pub async fn each(
        &self,
        seen: &[Seen],
        deed: &Deed,
        act: &Act,
    ) -> Vec<(RecordId, Result<Stored, Refused>)> {
        let one = async |seen: &Seen| {
            let done = match deed {
                Deed::Resolve(found) => self.resolve(seen.id, Some(seen.version), found, act).await,
                Deed::Seen => self.seen(seen.id, Some(seen.version), act).await,
                Deed::Forget => self.forget(seen.id, Some(seen.version), act).await,
            };
            (seen.id, done)
        };
        let bounded = seen.iter().take(BULK_MAX as usize);
        stream::iter(bounded.map(one)).buffered(AT_ONCE).collect().await
    }
}

/// Records that one call changes at most: some seconds of work, and a list that a person can still read.
pub const BULK_MAX: u32 = 500;

/// Acts under way at once: enough to share commits, few enough for requests not to feel.
const AT_ONCE: usize = 16;
