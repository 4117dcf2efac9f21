//! The hot path: new records and their finishes fly together, one packet for many of them.

mod send_flight;
mod statement;

use ibid_core::change::{Change, Expect, InstantChange};
use ibid_core::row::INLINE_BODY_MAX;

use super::{KIND, MysqlCore};
use crate::store::commit_queue::{Committer, FlightBatch, FlightOutcome, Item, LockWait, Path, PlainOutcome};

impl Committer for MysqlCore {
    /// A row is found by its id.
    type RowLocation = ();

    const KIND: &'static str = KIND;

    fn path(&self, change: &Change) -> Path<()> {
        if !self.target.options.hot_path || !is_row_only(change) || !has_short_names(change) {
            return Path::Plain;
        }
        match change.expect {
            Expect::Absent if is_begin(change) => Path::Begin,
            Expect::Version(_) if is_finish(change) => Path::Finish(()),
            _ => Path::Plain,
        }
    }

    async fn send_flight(&self, batch: FlightBatch<()>) -> Vec<(Item, FlightOutcome)> {
        send_flight::send(self, batch).await
    }

    async fn commit_plain(&self, change: &Change, wait: LockWait) -> PlainOutcome {
        self.commit_alone(change, wait).await
    }
}

/// Returns whether the change writes one row of `ibid_record` and nothing else: no history, no bodies, none to delete.
fn is_row_only(change: &Change) -> bool {
    let is_small = change.response.as_ref().is_none_or(|response| response.body.len() <= INLINE_BODY_MAX);
    change.draft.is_some()
        && change.history.is_empty()
        && change.bodies.is_empty()
        && change.uses.is_none()
        && is_small
        && !change.clears_bodies
}

/// Returns whether tenant, operation and key fit their columns. The server refuses a longer one, and the whole flight with it, so
/// it goes alone.
fn has_short_names(change: &Change) -> bool {
    let Some(draft) = &change.draft else { return false };
    let identity = &draft.identity;
    let names = [identity.tenant.as_str(), &identity.operation.method, identity.key.as_str()];
    names.iter().all(|name| name.len() <= NAME_MAX) && identity.operation.path.len() <= PATH_MAX
}

/// Returns whether the change begins a generation without a response. Its birth is its nonce, and the statement writes that.
fn is_begin(change: &Change) -> bool {
    change.response.is_none() && change.draft.as_ref().is_some_and(|draft| draft.birth == change.nonce)
}

/// Returns whether the change ends an attempt with a response, within its generation. Then tenant, operation and key stay as
/// they are, and the statement leaves them alone.
fn is_finish(change: &Change) -> bool {
    let Some(draft) = &change.draft else { return false };
    change.response.is_some()
        && draft.birth != change.nonce
        && [draft.created, draft.ran, draft.completed]
            == [InstantChange::Keep, InstantChange::Keep, InstantChange::Now]
        && draft.due_in.is_none()
}

/// Bytes of the columns `tenant`, `method` and `key`.
const NAME_MAX: usize = 255;

/// Bytes of the column `path`.
const PATH_MAX: usize = 65_535;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use ibid_core::change::{Stamp, StoredBody};
    use ibid_core::record::Record;
    use ibid_core::time::Timestamp;
    use ibid_testkit::contract::{TestRecord, finish_with, fresh, response};

    use super::*;

    fn begin_record() -> (Change, Arc<Record>) {
        let begin = fresh(&TestRecord::fresh(), Duration::from_secs(60));
        let record = begin.apply(Stamp { now: Timestamp::from_micros(1) }, None).expect("it writes");
        (begin, record)
    }

    #[test]
    fn a_finish_of_the_machine_flies() {
        let (begin, record) = begin_record();
        assert!(is_row_only(&begin) && is_begin(&begin) && begin.expect == Expect::Absent);
        let finish = finish_with(&record, b"201");
        assert!(is_row_only(&finish) && is_finish(&finish));
    }

    #[test]
    fn a_change_that_writes_more_does_not_fly() {
        let (begin, record) = begin_record();
        let with_body = || {
            let body = StoredBody { kind: ibid_core::change::BodyKind::Request, data: Default::default() };
            Change { bodies: vec![body], ..begin.clone() }
        };
        assert!(!is_row_only(&with_body()));
        let large = response(vec![0; INLINE_BODY_MAX + 1]);
        assert!(!is_row_only(&Change { response: Some(large), ..finish_with(&record, b"") }));
        assert!(!is_finish(&Change { response: None, ..finish_with(&record, b"") }));
        assert!(!is_row_only(&Change { clears_bodies: true, ..finish_with(&record, b"") }));
    }
}
