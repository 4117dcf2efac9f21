//! Refuses a cache in front of the store, because this program was built without Redis.

use std::sync::Arc;

use ibid::front::SharedCache;
use ibid_core::store::Store;

use super::FrontFacts;
use crate::config::FrontConfig;
use crate::output::Failure;

/// Refuses the URL of any server.
pub(crate) fn display_url_of(_: &str) -> Result<String, Failure> {
    Err(Failure::usage("names a Redis server, and this `ibid` was built without Redis")
        .hint("build it with `--features redis`, or with `all-stores`"))
}

/// Never called: [`display_url_of`] has refused the configuration.
pub(crate) async fn look_at_front(config: &FrontConfig) -> Result<FrontFacts, Failure> {
    display_url_of(config.url.reveal()).and(Err(Failure::usage("there is no front")))
}

/// Never called: [`display_url_of`] has refused the configuration.
pub(crate) async fn open_front(config: &FrontConfig, _: &dyn Store) -> Result<Arc<dyn SharedCache>, Failure> {
    display_url_of(config.url.reveal()).and(Err(Failure::usage("there is no front")))
}
