//! The cache in front of the store, which all gateways share. Without the feature `redis` a configuration that names one is
//! refused.

#[cfg(feature = "redis")]
mod redis;
#[cfg(not(feature = "redis"))]
mod without_redis;

#[cfg(feature = "redis")]
pub(crate) use redis::{display_url_of, look_at_front, open_front};
#[cfg(not(feature = "redis"))]
pub(crate) use without_redis::{display_url_of, look_at_front, open_front};

/// Facts about the server of a front.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrontFacts {
    pub(crate) version: String,
    /// `true` if it follows another server.
    pub(crate) is_replica: bool,
    /// Value of `maxmemory-policy`; `None` if it can't be read.
    pub(crate) eviction: Option<String>,
    /// Bytes that it may use; `None` without a bound.
    pub(crate) memory_max: Option<u64>,
}
