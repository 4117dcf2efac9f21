//! Looks at the server of a front and changes nothing.

use ::redis::RedisError;
use ::redis::aio::MultiplexedConnection;
use tokio::time::timeout;

use super::{RedisFront, RedisFrontError, parse};

/// Facts about the server of a front, for an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrontCheckup {
    /// Version of the server; empty if it does not tell.
    pub version: String,
    /// `true` if the server follows another one, and takes no entries.
    pub is_replica: bool,
    /// Value of `maxmemory-policy`; `None` if it can't be read.
    pub eviction: Option<String>,
    /// Value of `maxmemory` in bytes; `None` if there is no bound, or it can't be read.
    pub memory_max: Option<u64>,
}

impl RedisFront {
    /// Describes the server of a front. Changes nothing.
    ///
    /// # Errors
    ///
    /// Fails if the URL can't be used, or the server does not answer or refuses the user.
    pub async fn checkup(url: &str) -> Result<FrontCheckup, RedisFrontError> {
        let (_, client) = parse(url)?;
        let look = async {
            let mut connection = client.get_multiplexed_async_connection().await?;
            let mut text = String::new();
            for section in ["server", "replication", "memory"] {
                text += &info(&mut connection, section).await?;
            }
            Ok::<_, RedisError>(text)
        };
        let text = match timeout(super::link::CONNECT_WITHIN, look).await {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => return Err(RedisFrontError::Unreachable { source: Box::new(error) }),
            Err(late) => return Err(RedisFrontError::Unreachable { source: Box::new(late) }),
        };
        let line = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.map(|value| value.trim().to_owned())
        };
        Ok(FrontCheckup {
            version: line("redis_version").unwrap_or_default(),
            is_replica: line("role").is_some_and(|role| role == "slave"),
            eviction: line("maxmemory_policy"),
            memory_max: line("maxmemory").and_then(|bytes| bytes.parse().ok()).filter(|bytes| *bytes > 0),
        })
    }
}

async fn info(connection: &mut MultiplexedConnection, section: &str) -> Result<String, RedisError> {
    ::redis::cmd("INFO").arg(section).query_async(connection).await
}
