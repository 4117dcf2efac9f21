//! Opening a store: options, the checks at start, and the errors.

use std::sync::Arc;
use std::time::Duration;

use aws_config::SdkConfig;
use bytes::Bytes;
use ibid_core::store::{Store, StoreError};

use crate::DynamoStore;
use crate::client::{connect, load_config};
use crate::clock::{ClockState, ClockWatch, NodeClock, PROOF_FOR};
use crate::order::Shards;
use crate::skew::{SkewReads, VALID_FOR};
use crate::table::{TableCheckup, TableError, wait_until_active};
use crate::table_watch::{INSPECT_EVERY, TableWatch};

/// Options of a [`DynamoStore`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DynamoOptions {
    /// Name of the table.
    pub table: String,
    /// Region; `None`: as the environment or the profile says.
    pub region: Option<String>,
    /// Address of the service; `None`: that of the region.
    pub endpoint: Option<String>,
    /// The largest difference between the clocks of two nodes. All nodes on one table must agree on it.
    pub skew_max: Duration,
    /// Number of shards that a new table gets. `None`: 256, or what the table has.
    pub shards: Option<Shards>,
    /// The node's clock. Tests move it.
    pub clock: NodeClock,
    /// Time for which a read of the table's `skew_max` counts. Tests shorten it.
    #[doc(hidden)]
    pub skew_valid_for: Duration,
    /// Time for which a reply that proved the clock right counts. Tests shorten it.
    #[doc(hidden)]
    pub clock_proven_for: Duration,
    /// Time between two looks at the table while the store is open. Tests shorten it.
    #[doc(hidden)]
    pub inspect_every: Duration,
}

impl DynamoOptions {
    /// Options for a table, all others at their defaults.
    pub fn new(table: impl Into<String>) -> DynamoOptions {
        DynamoOptions {
            table: table.into(),
            region: None,
            endpoint: None,
            skew_max: SKEW_MAX_DEFAULT,
            shards: None,
            clock: NodeClock::default(),
            skew_valid_for: VALID_FOR,
            clock_proven_for: PROOF_FOR,
            inspect_every: INSPECT_EVERY,
        }
    }

    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut DynamoOptions)) -> DynamoOptions {
        change(&mut self);
        self
    }

    /// Loads region and credentials as every AWS program does.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn load_sdk_config(&self) -> SdkConfig {
        load_config(self.region.clone(), self.endpoint.clone()).await
    }
}

impl DynamoStore {
    /// Opens the store on a table that exists. A task looks at the table again every minute, until the store is dropped: if it
    /// became a global table, nothing begins.
    ///
    /// # Errors
    ///
    /// Fails if the table is missing or is not ibid's, is a global table, or if this node's clock is too far off.
    ///
    /// # Cancel safety
    ///
    /// As for [`DynamoStore::open_with`].
    pub async fn open(options: DynamoOptions) -> Result<DynamoStore, DynamoOpenError> {
        let config = options.load_sdk_config().await;
        DynamoStore::open_with(&config, options).await
    }

    /// Opens the store with your own configuration of the SDK: credentials, region, endpoint and HTTP client are taken from
    /// it.
    ///
    /// # Errors
    ///
    /// As [`DynamoStore::open`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped midway, the settings of the table, which the first process writes, may be written or not.
    /// The next open agrees with them or writes the rest.
    pub async fn open_with(
        config: &SdkConfig,
        options: DynamoOptions,
    ) -> Result<DynamoStore, DynamoOpenError> {
        let (wanted, skew_max, inspect_every) = (options.shards, options.skew_max, options.inspect_every);
        let mut store = DynamoStore::on_table(config, options).await?;
        match store.read_clock().await? {
            ClockState::Off(micros) => return Err(DynamoOpenError::ClockOff { micros, limit: skew_max / 2 }),
            ClockState::Unknown => {
                tracing::warn!(
                    ?skew_max,
                    "replies have no `Date`: it is not known whether this node's clock is right"
                );
            }
            ClockState::Within(_) | ClockState::Unproven => {}
        }
        store.shards = store.agree_on_shards(wanted).await?;
        store.agree_on_skew(skew_max).await?;
        store.table_watch = TableWatch::start(store.client.clone(), store.table.clone(), inspect_every);
        Ok(store)
    }

    /// Opens the store to look at it: writes nothing, and accepts a clock that is off.
    ///
    /// # Errors
    ///
    /// Fails if the table cannot be used, or was first used with other options.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn inspect(config: &SdkConfig, options: DynamoOptions) -> Result<DynamoStore, DynamoOpenError> {
        let (wanted, skew_max) = (options.shards, options.skew_max);
        let mut store = DynamoStore::on_table(config, options).await?;
        if let Some(stored) = store.setting(SHARDS).await? {
            store.shards = compare_shards(&stored, wanted)?;
        }
        store.check_skew(skew_max).await?;
        store.read_clock().await?;
        Ok(store)
    }

    async fn on_table(config: &SdkConfig, options: DynamoOptions) -> Result<DynamoStore, DynamoOpenError> {
        if !(SKEW_MAX_LEAST..=SKEW_MAX_MOST).contains(&options.skew_max) {
            return Err(DynamoOpenError::SkewOutOfRange(options.skew_max));
        }
        let watch = Arc::new(ClockWatch::new(options.clock, options.skew_max, options.clock_proven_for));
        let client = connect(config, watch.clone());
        match wait_until_active(&client, &options.table, false).await? {
            TableCheckup::Missing => return Err(DynamoOpenError::Missing(options.table)),
            TableCheckup::Unfit(why) => return Err(DynamoOpenError::Unfit { table: options.table, why }),
            TableCheckup::Creating | TableCheckup::Fit => {}
        }
        Ok(DynamoStore {
            client,
            table: options.table,
            shards: Shards::MAX,
            watch,
            table_watch: Default::default(),
            skew: SkewReads::new(options.skew_valid_for),
            policies: Default::default(),
            lines_in_doubt: Default::default(),
        })
    }

    /// The first node that opens a table sets its number of shards, and it stays: an entry is looked for where it was written.
    async fn agree_on_shards(&self, wanted: Option<Shards>) -> Result<Shards, DynamoOpenError> {
        let ours = wanted.unwrap_or(Shards::MAX);
        let stored = self.put_if_absent(SHARDS, Bytes::from(ours.count().to_string())).await?;
        compare_shards(&stored, wanted)
    }

    /// Compares the clock with the service's. The first reply is slow, because the connection is new, so others follow.
    async fn read_clock(&self) -> Result<ClockState, DynamoOpenError> {
        for _ in 0..CLOCK_READINGS {
            self.read_skew("read the clock").await?;
            if self.watch.trusts(self.watch.now()) {
                break;
            }
        }
        Ok(self.clock_state())
    }
}

fn compare_shards(stored: &[u8], wanted: Option<Shards>) -> Result<Shards, DynamoOpenError> {
    let stored = std::str::from_utf8(stored).ok().and_then(|count| count.parse().ok()).and_then(Shards::new);
    match (stored, wanted) {
        (None, _) => Err(DynamoOpenError::UnknownFormat),
        (Some(stored), Some(wanted)) if stored != wanted => {
            Err(DynamoOpenError::OtherShards { stored: stored.count(), wanted: wanted.count() })
        }
        (Some(stored), _) => Ok(stored),
    }
}

/// The store can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DynamoOpenError {
    /// There is no such table.
    #[error("there is no table `{0}`; run `ibid migrate`")]
    Missing(String),
    /// The table is not one that ibid can use.
    #[error("the table `{table}` cannot be used: {why}")]
    Unfit {
        /// Name of the table.
        table: String,
        /// Reason why the store refuses it.
        why: String,
    },
    /// `skew_max` is smaller than what can be checked, or larger than any clock needs.
    #[error("`skew_max` is {0:?}, and must be {SKEW_MAX_LEAST:?} to {SKEW_MAX_MOST:?}")]
    SkewOutOfRange(Duration),
    /// Another node declared a larger difference.
    #[error(
        "`skew_max` is {ours:?}, but the nodes on this table use {stored:?}: take the larger one everywhere"
    )]
    SmallerSkew {
        /// Value in the table.
        stored: Duration,
        /// Value of this node.
        ours: Duration,
    },
    /// The table has another number of shards.
    #[error("the table has {stored} shards, not {wanted}: leave the parameter `shards` out")]
    OtherShards {
        /// Number in the table.
        stored: u16,
        /// Number that was asked for.
        wanted: u16,
    },
    /// The clock of this node is too far from the service's.
    #[error("this node's clock may be {} ms off; at most {limit:?} are allowed: set it right, or raise `skew_max`", micros / 1000)]
    ClockOff {
        /// The largest distance that the reading allows, in microseconds.
        micros: i64,
        /// The bound: half of `skew_max`.
        limit: Duration,
    },
    /// A newer version of ibid has written the table.
    #[error("the table has a format that this version does not know")]
    UnknownFormat,
    /// The service did not answer, or refused.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A setting can't be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl DynamoOpenError {
    /// Returns whether a later try may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            DynamoOpenError::Table(error) => error.is_retryable(),
            DynamoOpenError::Store(error) => error.is_transient(),
            DynamoOpenError::ClockOff { .. } => true,
            _ => false,
        }
    }
}

/// Default of `skew_max`. Nodes that keep time by NTP differ by milliseconds; this leaves room for a node that has lost it
/// for days, and a takeover waits that much longer.
pub const SKEW_MAX_DEFAULT: Duration = Duration::from_secs(10);

/// Least `skew_max`: half of it must hold the error of a reading (`Date` has whole seconds, and the round trip adds to
/// that) and some drift.
pub const SKEW_MAX_LEAST: Duration = Duration::from_secs(5);

/// Largest `skew_max`: a clock that is minutes off is broken, and time to live may delete a record an hour after its end.
pub const SKEW_MAX_MOST: Duration = Duration::from_secs(10 * 60);

const SHARDS: &str = "dynamodb shards";

/// Readings of the clock at start.
const CLOCK_READINGS: u32 = 3;
