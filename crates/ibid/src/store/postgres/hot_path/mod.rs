//! The hot path: new records and their finishes fly together, one statement for many of them.

mod encode;
mod row_location;
mod send_flight;
mod taken_ids;

use ibid_core::change::{Change, Draft};

use self::row_location::Tid;
use super::{KIND, PostgresCore};
use crate::store::commit_queue::{Committer, FlightBatch, FlightOutcome, Item, LockWait, Path, PlainOutcome};

pub(super) use self::row_location::RowLocations;
pub(super) use self::taken_ids::TakenIds;

impl Committer for PostgresCore {
    type RowLocation = Tid;

    const KIND: &'static str = KIND;

    fn path(&self, change: &Change) -> Path<Tid> {
        if !self.target.options.hot_path {
            return Path::Plain;
        }
        if row_location::is_fresh(change) {
            return Path::Begin;
        }
        let policy = |draft: &Draft| self.policies.number(&draft.policy).digest;
        self.locations.take(change, policy).map_or(Path::Plain, Path::Finish)
    }

    async fn send_flight(&self, batch: FlightBatch<Tid>) -> Vec<(Item, FlightOutcome)> {
        send_flight::send_flight(self, batch).await
    }

    async fn commit_plain(&self, change: &Change, wait: LockWait) -> PlainOutcome {
        self.commit_alone(change, wait).await
    }
}
