//! The DynamoDB store of ibid: one table, conditional writes on version and nonce, no server clock.
//!
//! ```no_run
//! # async fn open() -> Result<(), Box<dyn std::error::Error>> {
//! use ibid_dynamodb::{DynamoOptions, DynamoStore};
//!
//! let options = DynamoOptions::new("ibid").with(|options| options.region = Some("eu-central-1".to_owned()));
//! let store = DynamoStore::open(options).await?;
//! # Ok(())
//! # }
//! ```
//!
//! | item | `i` | `k` |
//! | --- | --- | --- |
//! | record | id | `r` |
//! | part of a body | id of the record | `b#nonce#kind#part` |
//! | lines of history | id of the record | `h#instant#count#nonce` |
//! | evidence | id of the record or effect | `e#digest of the event's name` |
//! | pointer to evidence | digest of the event's name | `e` |
//! | setting | digest of its name | `s` |
//! | policy | its number | `p` |
//!
//! `item.rs` lists the attributes of a record, `order.rs` the two indexes.

#![warn(missing_debug_implementations, clippy::exhaustive_enums)]

mod bodies;
mod browse;
mod client;
mod clock;
mod commit;
mod copy;
mod evidence;
mod history;
mod item;
mod open;
mod order;
mod policies;
mod settings;
mod skew;
mod table;
mod table_watch;
mod upkeep;
mod url;

use std::sync::Arc;
use std::time::Instant;

use aws_sdk_dynamodb::Client;
use bytes::Bytes;
use ibid_core::change::{Change, Commit, StoredRecord};
use ibid_core::evidence::EvidenceStore;
use ibid_core::reap::{ReapStep, ReapTarget};
use ibid_core::record::{State, Version};
use ibid_core::scope::RecordId;
use ibid_core::store::{
    BodyStore, BoxFuture, BrowseStore, CopyStore, Cursor, Durability, Page, RenewOutcome, SetOutcome, Store,
    StoreClock, StoreError, StoreFacts,
};

pub use clock::{ClockState, NodeClock};
pub use open::{DynamoOpenError, DynamoOptions, SKEW_MAX_DEFAULT, SKEW_MAX_LEAST, SKEW_MAX_MOST};
pub use order::Shards;
pub use table::{
    TableCheckup, TableError, cloud_formation, create_table, inspect_table, is_ttl_on, terraform,
};
pub use url::DynamoUrlError;

use clock::{ClockWatch, NodeTime};
use history::LinesInDoubt;
use policies::Policies;
use skew::SkewReads;
use table_watch::TableWatch;

/// A store in a DynamoDB table.
#[derive(Debug)]
pub struct DynamoStore {
    client: Client,
    table: String,
    shards: Shards,
    watch: Arc<ClockWatch>,
    table_watch: Arc<TableWatch>,
    skew: SkewReads,
    policies: Policies,
    lines_in_doubt: LinesInDoubt,
}

impl DynamoStore {
    /// Returns what is known about the distance between this node's clock and the service's.
    pub fn clock_state(&self) -> ClockState {
        self.watch.state()
    }

    fn request(&self) -> &Client {
        &self.client
    }

    /// Returns the node's time for a write that gives a lease, or for a judgement about another node's instants.
    ///
    /// # Errors
    ///
    /// Fails, and nothing is sent, while the node's clock is too far off.
    async fn trusted_now(&self, op: &'static str) -> Result<NodeTime, StoreError> {
        if !self.watch.trusts(self.watch.now()) || self.skew.is_stale() {
            // Any reply shows whether the clock is right again.
            self.read_skew(op).await.map_err(StoreError::unwritten)?;
        }
        let now = self.watch.now();
        match self.watch.trusts(now) {
            true => Ok(now),
            false => Err(self.distrust(op).unsent()),
        }
    }

    /// Returns the error of a request that needs a right clock.
    fn distrust(&self, op: &'static str) -> StoreError {
        let cause = format!("this node's clock is too far from the service's: {:?}", self.watch.state());
        StoreError::transient(NAME, op, cause)
    }
}

impl Store for DynamoStore {
    fn facts(&self) -> StoreFacts {
        let clock = StoreClock::Node { skew_max: self.watch.skew_max() };
        let refusal = self.table_watch.refusal();
        let durability = refusal.map_or(Durability::Durable, |reason| Durability::Weak { reason });
        StoreFacts { name: NAME, clock, durability }
    }

    fn load(&self, id: RecordId) -> BoxFuture<'_, Result<Option<StoredRecord>, StoreError>> {
        Box::pin(self.load_record("load", id))
    }

    fn commit(
        &self,
        change: Arc<Change>,
        send_by: Option<Instant>,
    ) -> BoxFuture<'_, Result<Commit, StoreError>> {
        Box::pin(async move { self.commit_change(&change, send_by).await })
    }

    fn renew(
        &self,
        leases: Vec<(RecordId, Version)>,
    ) -> BoxFuture<'_, Result<Vec<RenewOutcome>, StoreError>> {
        Box::pin(self.renew_leases(leases))
    }

    fn due(
        &self,
        state: State,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        Box::pin(self.due_records(state, after, limit))
    }

    fn reap(
        &self,
        target: ReapTarget,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<ReapStep, StoreError>> {
        Box::pin(async move {
            match target {
                ReapTarget::Records => self.reap_records(after, limit).await,
                ReapTarget::History { keep } => self.reap_history(keep, after, limit).await,
                // There is no outbox and no file, and a policy is so small that it stays.
                ReapTarget::Effects { .. } | ReapTarget::Policies | ReapTarget::Room => {
                    Ok(ReapStep::default())
                }
            }
        })
    }

    fn setting(&self, name: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            // A process that begins attempts reads its identity every few seconds, and so this with it.
            if self.skew.is_old() {
                self.read_skew(READ_SETTING).await?;
            }
            self.read_setting(READ_SETTING, &name).await
        })
    }

    fn compare_and_set(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> BoxFuture<'_, Result<SetOutcome, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            // A node whose clock is off is not ready, and not elected for upkeep: it could do none of it.
            self.trusted_now(WRITE_SETTING).await?;
            self.write_setting(&name, expected, value).await
        })
    }

    fn bodies(&self) -> Option<&dyn BodyStore> {
        Some(self)
    }

    fn browse(&self) -> Option<&dyn BrowseStore> {
        Some(self)
    }

    fn evidence(&self) -> Option<&dyn EvidenceStore> {
        Some(self)
    }

    fn copy(&self) -> Option<&dyn CopyStore> {
        Some(self)
    }
}

pub(crate) const NAME: &str = "dynamodb";

const READ_SETTING: &str = "read a setting";
const WRITE_SETTING: &str = "write a setting";
