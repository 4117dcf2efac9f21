//! What callers' transactions on the same file need of the store: its clock, its policies, and work on its own writer.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use ibid_core::policy::Policy;
use ibid_core::sql::{Dialect, SqlError, SqlFault};
use ibid_core::store::{BoxFuture, SqlStore, StoreError, Work};
use ibid_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use super::{KIND, SqliteStore};
use crate::transaction::rusqlite::Joined;

/// Numbers of policies that are on disk for sure: a number that a rolled-back transaction had given is not among them.
#[derive(Debug, Default)]
pub(super) struct OnDisk(Mutex<Vec<(Arc<Policy>, i64)>>);

impl OnDisk {
    fn find(&self, policy: &Arc<Policy>) -> Option<i64> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(known, _)| Arc::ptr_eq(known, policy)).map(|(_, number)| *number)
    }

    fn put(&self, policy: Arc<Policy>, number: i64) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.push((policy, number));
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
            if let Some(number) = self.on_disk.find(&policy) {
                return Ok(number);
            }
            let data = policy.to_bytes();
            let kept = self.run(move |connection| number(connection, &data)).await?;
            let number = kept.map_err(|error| StoreError::transient(KIND, "keep a policy", error))?;
            self.on_disk.put(policy, number);
            Ok(number)
        })
    }

    fn work(&self, work: Work) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let done = self.run(move |connection| {
                // Every statement of this transaction is ready at once, and the work waits for nothing else.
                let ready = work(&mut Joined(connection)).now_or_never();
                ready.unwrap_or_else(|| {
                    Err(SqlError::new(SqlFault::Wrong, "the work waited for something else"))
                })
            });
            done.await?.map_err(|error| match error.fault() {
                SqlFault::Wrong => StoreError::lasting(KIND, "work", error),
                SqlFault::Serialization | SqlFault::LockTimeout | SqlFault::Lost => {
                    StoreError::transient(KIND, "work", error)
                }
            })
        })
    }
}

fn number(connection: &mut Connection, data: &[u8]) -> rusqlite::Result<i64> {
    let mut find = connection.prepare_cached(include_str!("sql/policy_find.sql"))?;
    match find.query_row([data], |row| row.get(0)).optional()? {
        Some(number) => Ok(number),
        None => connection.prepare_cached(include_str!("sql/policy_add.sql"))?.insert([data]),
    }
}

/// A program has a policy per route; past this somebody makes new ones all the time.
const KNOWN_MAX: usize = 256;
