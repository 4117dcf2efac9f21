//! The store's side of callers' transactions on the same file: its clock, its policies, and work on its own writer.

use std::sync::Arc;

use futures_util::FutureExt;
use ibid_core::policy::Policy;
use ibid_core::sql::{Dialect, SqlError, SqlFault};
use ibid_core::store::{BoxFuture, SqlStore, StoreError, Work};
use ibid_core::time::Timestamp;
use parking_lot::Mutex;
use rusqlite::Connection;

use super::chore::{ChoreContext, ChoreKind};
use super::policies::{self, SEEN_EVERY};
use super::{NAME, SqliteStore};
use crate::driver::rusqlite_client::JoinedTx;

/// Numbers of policies that are on disk for sure: a number that a rolled-back transaction had given is not among them.
#[derive(Debug, Default)]
pub(super) struct PolicyNumbers(Mutex<Vec<(Arc<Policy>, i64, Timestamp)>>);

impl PolicyNumbers {
    /// Returns the number of a policy that was seen lately. After [`SEEN_EVERY`] it is looked up again, because a reaper
    /// may have deleted a policy that was not in use for long.
    fn find(&self, policy: &Arc<Policy>, now: Timestamp) -> Option<i64> {
        let known = self.0.lock();
        let entry = known.iter().find(|(known, ..)| Arc::ptr_eq(known, policy));
        entry.filter(|(.., seen_at)| now.since(*seen_at) < SEEN_EVERY).map(|(_, number, _)| *number)
    }

    fn put(&self, policy: Arc<Policy>, number: i64, now: Timestamp) {
        let mut known = self.0.lock();
        known.retain(|(known, ..)| !Arc::ptr_eq(known, &policy));
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.push((policy, number, now));
    }
}

impl SqlStore for SqliteStore {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn now(&self) -> Option<Timestamp> {
        Some(self.clock.now())
    }

    fn policy(&self, policy: Arc<Policy>) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(async move {
            let now = self.clock.now();
            if let Some(number) = self.policy_numbers.find(&policy, now) {
                return Ok(number);
            }
            let stored = policy.clone();
            let put = move |connection: &Connection, context: ChoreContext| {
                policies::put(connection, &stored, context.now)
            };
            let number = self.write_chore("store a policy", ChoreKind::Setting, put).await?;
            self.policy_numbers.put(policy, number, now);
            Ok(number)
        })
    }

    fn work(&self, work: Work) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let done = self.run(move |connection| {
                // Every statement of this transaction is ready at once, and the work waits for nothing else.
                let ready = work(&mut JoinedTx(connection)).now_or_never();
                ready.unwrap_or_else(|| {
                    Err(SqlError::new(SqlFault::Wrong, "the work waited for something else"))
                })
            });
            done.await?.map_err(|error| match error.fault() {
                SqlFault::Wrong => StoreError::lasting(NAME, "work", error),
                SqlFault::Serialization | SqlFault::LockTimeout | SqlFault::Lost => {
                    StoreError::transient(NAME, "work", error)
                }
            })
        })
    }
}

/// A program has a policy per route; one with more generates them, and pays with a lookup.
const KNOWN_MAX: usize = 256;
