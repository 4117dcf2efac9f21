//! Opens Redis as the cache in front of the store.

use std::sync::Arc;

use ibid::front::SharedCache;
use ibid::front::redis::{RedisFront, RedisFrontError, RedisFrontOptions};
use ibid_core::store::Store;

use super::FrontFacts;
use crate::config::FrontConfig;
use crate::output::Failure;

/// Returns the address in a URL, without user and password.
pub(crate) fn display_url_of(url: &str) -> Result<String, Failure> {
    RedisFront::display_url_of(url)
        .map_err(|error| Failure::usage("is not the URL of a Redis server").because_of(&error))
}

/// Describes the server of a front.
pub(crate) async fn look_at_front(config: &FrontConfig) -> Result<FrontFacts, Failure> {
    let checkup = RedisFront::checkup(config.url.reveal()).await;
    let facts = checkup.map_err(|error| Failure::world("cannot reach the front").because_of(&error))?;
    Ok(FrontFacts {
        version: facts.version,
        is_replica: facts.is_replica,
        eviction: facts.eviction,
        memory_max: facts.memory_max,
    })
}

/// Connects to the server. One that does not answer is logged, and the gateway starts without it.
pub(crate) async fn open_front(
    config: &FrontConfig,
    store: &dyn Store,
) -> Result<Arc<dyn SharedCache>, Failure> {
    let options = RedisFrontOptions::default().with(|options| options.timeout = config.timeout);
    match RedisFront::open(config.url.reveal(), store, options).await {
        Ok(front) => Ok(Arc::new(front)),
        Err(error @ RedisFrontError::Store(_)) => {
            Err(Failure::world("cannot use the store for the front").because_of(&error))
        }
        Err(error) => Err(Failure::usage("cannot use `front.url`").because_of(&error)),
    }
}
