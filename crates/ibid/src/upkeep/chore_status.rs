//! Status of each chore of this process, for operators: its last success and its last failure.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::ibid::Ibid;
use parking_lot::Mutex;

/// Status of one chore of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChoreStatus {
    /// Name of the chore, as in the metrics.
    pub name: &'static str,
    /// Time of the last success, by this node's clock.
    pub succeeded_at: Option<SystemTime>,
    /// Number of items that the last successful run handled.
    pub did: u64,
    /// Time of the last failure.
    pub failed_at: Option<SystemTime>,
    /// Error of the last failure, cleared by the next success.
    pub error: Option<String>,
}

impl Ibid {
    /// Returns the status of every chore that has run in this process, ordered by name.
    pub fn chores(&self) -> Vec<ChoreStatus> {
        let chores = self.upkeep().log.0.lock();
        chores.values().cloned().collect()
    }
}

/// Statuses of the chores of one process.
#[derive(Debug, Default)]
pub(crate) struct ChoreLog(Mutex<BTreeMap<&'static str, ChoreStatus>>);

impl ChoreLog {
    pub(super) fn record_success(&self, name: &'static str, did: u64, at: SystemTime) {
        self.update(name, |chore| {
            (chore.succeeded_at, chore.did, chore.error) = (Some(at), did, None);
        });
    }

    pub(super) fn record_failure(&self, name: &'static str, error: String) {
        self.update(name, |chore| {
            (chore.failed_at, chore.error) = (Some(SystemTime::now()), Some(error));
        });
    }

    fn update(&self, name: &'static str, set: impl FnOnce(&mut ChoreStatus)) {
        let mut chores = self.0.lock();
        let new = || ChoreStatus { name, succeeded_at: None, did: 0, failed_at: None, error: None };
        set(chores.entry(name).or_insert_with(new));
    }
}
