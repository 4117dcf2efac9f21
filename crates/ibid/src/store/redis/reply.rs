//! Parts of a script's reply.

use ibid_core::time::Timestamp;
use redis::Value;

use super::error::Failure;

/// Returns the bytes of a part; `None` if it is nothing or a number.
pub(super) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// Returns the number in a part of a reply.
pub(super) fn number(value: &Value) -> Result<i64, Failure> {
    match value {
        Value::Int(number) => Ok(*number),
        _ => Err(Failure::reply()),
    }
}

/// Returns the server's time, from seconds and microseconds in the first two parts.
pub(super) fn time(parts: &[Value]) -> Result<Timestamp, Failure> {
    match parts {
        [Value::Int(seconds), Value::Int(micros), ..] => {
            Ok(Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(*micros)))
        }
        _ => Err(Failure::reply()),
    }
}
