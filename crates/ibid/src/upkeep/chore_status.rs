//! When each chore of this process last ran and what came of it, for operators.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::ibid::Ibid;
use parking_lot::Mutex;

/// How a chore of this process goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoreStatus {
    /// Its name, as in the metrics.
    pub name: &'static str,
    /// When it last succeeded, by this node's clock.
    pub succeeded_at: Option<SystemTime>,
    /// How much it did then.
    pub did: u64,
    /// When it last failed.
    pub failed_at: Option<SystemTime>,
    /// Why; gone once it succeeds.
    pub error: Option<String>,
}

impl Ibid {
    /// Every chore that has run in this process, by name.
    pub fn chores(&self) -> Vec<ChoreStatus> {
        let ran = self.upkeep().ran.0.lock();
        ran.values().cloned().collect()
    }
}

/// The chores of one process.
#[derive(Debug, Default)]
pub(crate) struct ChoreLog(Mutex<BTreeMap<&'static str, ChoreStatus>>);

impl ChoreLog {
    pub(super) fn succeeded(&self, name: &'static str, did: u64, at: SystemTime) {
        self.of(name, |chore| {
            (chore.succeeded_at, chore.did, chore.error) = (Some(at), did, None);
        });
    }

    pub(super) fn failed(&self, name: &'static str, error: String) {
        self.of(name, |chore| {
            (chore.failed_at, chore.error) = (Some(SystemTime::now()), Some(error));
        });
    }

    fn of(&self, name: &'static str, set: impl FnOnce(&mut ChoreStatus)) {
        let mut ran = self.0.lock();
        let new = || ChoreStatus { name, succeeded_at: None, did: 0, failed_at: None, error: None };
        set(ran.entry(name).or_insert_with(new));
    }
}
