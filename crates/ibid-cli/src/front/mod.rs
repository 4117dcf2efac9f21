//! The cache in front of the store, which all gateways share. Without the feature `redis` a configuration that names one is
//! refused.

#[cfg(feature = "redis")]
mod redis;
#[cfg(not(feature = "redis"))]
mod without_redis;

#[cfg(feature = "redis")]
pub(crate) use redis::{open_front, place_of};
#[cfg(not(feature = "redis"))]
pub(crate) use without_redis::{open_front, place_of};
