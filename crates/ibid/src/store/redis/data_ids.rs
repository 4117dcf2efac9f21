//! The random id of each bucket's data, by which a server that lost its data is noticed.
//!
//! A server without its disk returns empty, with the same settings as before. T1 completes a key; the server restarts empty; T2
//! retries the key, finds nothing, and runs again. A server that restarts closes its connections, so each new connection asks,
//! before the first script is sent on it.
//!
//! The id is in the bucket itself, so it moves with the slot of the bucket and is copied to replicas: a new server of a cluster
//! gets the ids with the slots. A single server has one id, in its settings.

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};

use super::error::{is_down, is_elsewhere};
use super::key::Bucket;
use super::node::send;
use super::{STORE_ID, reply};
use crate::random::random;

/// The ids by [`Bucket::index`], as this process first read them. Without that of the settings, the store is not open yet.
pub(super) struct DataIds(Mutex<Vec<Option<Vec<u8>>>>);

/// State of one bucket on the server that was asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BucketData {
    /// The bucket has the data that this process knows, or that it saw for the first time.
    Known,
    Lost,
    OfAnotherStore,
    /// Another server has the bucket, or none for now.
    Elsewhere,
}

impl DataIds {
    pub(super) fn new() -> DataIds {
        DataIds(Mutex::new(vec![None; Bucket::COUNT]))
    }

    /// Remembers the id of the store. From now on nothing begins on a server that lacks its data.
    pub(super) fn set_store_id(&self, id: &[u8]) {
        self.0.lock()[Bucket::SETTINGS.index()] = Some(id.to_vec());
    }

    /// Returns why the data of a server is not that of this store; `None` if it is, or if the server can't show it. A bucket whose
    /// id this process has not read yet is taken as it is, and gets an id if it has none.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or because the cluster is down: it would answer a moment later, and begin.
    pub(super) async fn find_lost_data(
        &self,
        connection: &MultiplexedConnection,
        buckets: Vec<Bucket>,
    ) -> Result<Option<String>, RedisError> {
        if self.0.lock()[Bucket::SETTINGS.index()].is_none() {
            return Ok(None);
        }
        let (mut lost, mut is_shown, mut down) = (None, false, None);
        let looks = buckets.into_iter().map(|bucket| self.look(connection, bucket));
        for found in join_all(looks).await {
            match found {
                Ok(BucketData::Elsewhere) => continue,
                Ok(BucketData::Lost) => {
                    let why = "it lost the data of this store: restore it, or restart ibid to accept that every key is new";
                    lost = Some(why.to_owned());
                }
                Ok(BucketData::OfAnotherStore) => lost = Some("it has the data of another store".to_owned()),
                Ok(BucketData::Known) => {}
                // Of this slot alone, perhaps.
                Err(error) if is_down(&error) => {
                    down = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            }
            is_shown = true;
        }
        match down.filter(|_| !is_shown) {
            Some(error) => Err(error),
            None => Ok(lost),
        }
    }

    async fn look(
        &self,
        connection: &MultiplexedConnection,
        bucket: Bucket,
    ) -> Result<BucketData, RedisError> {
        let is_new = self.0.lock()[bucket.index()].is_none();
        let ask = async |name: &str, value: Option<&[u8]>| {
            let mut command = Cmd::new();
            command.arg(name).arg(bucket.data_id()).arg(STORE_ID).arg(value);
            send(connection.clone(), &command, false).await
        };
        let mut stored = ask("HGET", None).await;
        if is_new && matches!(stored, Ok(Value::Nil)) {
            stored = match ask("HSETNX", Some(&random::<16>())).await {
                // Another process may have been faster.
                Ok(_) => ask("HGET", None).await,
                // Its memory is full, or it became a replica. The next inspection tries again.
                Err(error) if error.code().is_some() => return Ok(BucketData::Elsewhere),
                Err(error) => Err(error),
            };
        }
        let stored = match stored {
            Err(error) if is_elsewhere(&error) => return Ok(BucketData::Elsewhere),
            stored => stored?,
        };
        let Some(stored) = reply::bytes(&stored) else { return Ok(BucketData::Lost) };
        // The first look that ends decides, because another one may have read the id meanwhile.
        let mut ids = self.0.lock();
        let known = ids[bucket.index()].get_or_insert_with(|| stored.to_vec());
        Ok(if known.as_slice() == stored { BucketData::Known } else { BucketData::OfAnotherStore })
    }
}
