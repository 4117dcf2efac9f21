//! Runs the request that is stored with a record, without its client. The sweeper and the deliverer share this code.

use parking_lot::Mutex;
use std::sync::Arc;

use bytes::Bytes;
use ibid_core::change::{BodyKind, LoadedBody, StoredRecord};
use ibid_core::machine::{BeginRequest, Event};
use ibid_core::record::{ErrorCode, Nonce, Record, RecoveryPoint};
use ibid_core::store::{BoxFuture, StoreError};
use tokio::time::Instant;

use crate::attempt::Attempt;
use crate::engine::{GiveUp, TenantBound};
use crate::ibid::Ibid;

/// Runs requests without their clients: lapsed requests, and requests that were accepted to run later.
pub trait Resume: Send + Sync {
    /// Rebuilds the begin request from the record and its stored request. Returns `None` if the request cannot be read.
    fn ask(&self, record: &Record, request: &Bytes) -> Option<BeginRequest>;

    /// Runs the request to its end, after the last recovery point.
    fn run(&self, attempt: Attempt, ask: Arc<BeginRequest>, request: Bytes) -> BoxFuture<'static, ()>;
}

impl Ibid {
    /// Registers the service with which the chores of this process run accepted requests, and requests of routes with
    /// `on_lapse = resume` that lapsed or left an in-doubt call.
    pub fn resume_with(&self, resumer: Arc<dyn Resume>) {
        *self.upkeep().resumes.runner.lock() = Some(resumer);
    }
}

/// The runner of stored requests that is registered in this process, and the permits for lapsed requests.
pub(crate) struct Resumes {
    runner: Mutex<Option<Arc<dyn Resume>>>,
    pub(super) slots: TenantBound,
}

impl Default for Resumes {
    fn default() -> Self {
        Resumes { runner: Mutex::default(), slots: TenantBound::new(RESUMES_MAX) }
    }
}

impl Resumes {
    pub(super) fn runner(&self) -> Option<Arc<dyn Resume>> {
        self.runner.lock().clone()
    }

    /// Returns whether no further lapsed request of some tenant can be resumed now.
    pub(super) fn are_full(&self) -> bool {
        self.slots.refuses_any()
    }
}

/// The request that is stored with one generation of a record.
pub(super) struct StoredRequest {
    generation: Nonce,
    ask: Arc<BeginRequest>,
    bytes: Bytes,
}

impl StoredRequest {
    /// Loads the request of a record. Returns `None` if it has none, or one that `runner` cannot read.
    pub(super) async fn load(
        ibid: &Ibid,
        runner: &dyn Resume,
        record: &Record,
    ) -> Result<Option<StoredRequest>, StoreError> {
        let bodies = ibid.engine().bodies(record.id, record.birth).await?;
        let request = bodies.into_iter().find(|body| body.kind == BodyKind::Request.code());
        Ok(request.and_then(|LoadedBody { data: bytes, .. }| {
            let ask = Arc::new(runner.ask(record, &bytes)?);
            Some(StoredRequest { generation: record.birth, ask, bytes })
        }))
    }

    /// Returns whether this is the request of `taken`. It is not if another generation of the record began between loading
    /// the request and taking the record.
    pub(super) fn is_of(&self, taken: &Record) -> bool {
        self.generation == taken.birth
    }

    /// Runs the request as the attempt that has just taken the record, after the recovery point `after`. `at` is an instant
    /// before the record was taken.
    pub(super) fn run(
        self,
        ibid: &Ibid,
        runner: &dyn Resume,
        taken: StoredRecord,
        after: RecoveryPoint,
        at: Instant,
    ) -> BoxFuture<'static, ()> {
        let permit = ibid.engine().attempt_slots.take_beyond(&taken.record.identity.tenant);
        let attempt = Attempt::new(permit, ibid.clone(), self.ask.clone(), taken.record, after, at);
        runner.run(attempt.of_upkeep(), self.ask, self.bytes)
    }
}

/// Releases a record that was taken and whose request was not run.
pub(super) async fn release(ibid: &Ibid, taken: StoredRecord) {
    let record = taken.record.clone();
    let event = |nonce| Event::NotExecuted { begun: &record, nonce, why: ErrorCode::NotSent };
    ibid.engine().write_until_done(Some(taken), GiveUp::Late, event).await;
}

/// Lapsed requests that one process runs at once; one tenant may have half of them. The load of a crashed node must not crash
/// this one too.
const RESUMES_MAX: usize = 32;
