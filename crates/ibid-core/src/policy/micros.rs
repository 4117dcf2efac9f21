//! Encodes durations as microseconds, the unit of every stored instant.

use std::time::Duration;

use minicbor::encode::Write;
use minicbor::{Decoder, Encoder};

pub(super) fn encode<C, W: Write>(
    length: &Duration,
    e: &mut Encoder<W>,
    _: &mut C,
) -> Result<(), minicbor::encode::Error<W::Error>> {
    e.u64(u64::try_from(length.as_micros()).unwrap_or(u64::MAX))?.ok()
}

pub(super) fn decode<C>(d: &mut Decoder<'_>, _: &mut C) -> Result<Duration, minicbor::decode::Error> {
    d.u64().map(Duration::from_micros)
}

/// Encodes an optional duration as microseconds.
pub(super) mod optional {
    use super::Duration;
    use minicbor::encode::Write;
    use minicbor::{Decode, Decoder, Encode, Encoder};

    pub(crate) fn encode<C, W: Write>(
        length: &Option<Duration>,
        e: &mut Encoder<W>,
        ctx: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        length.map(|length| u64::try_from(length.as_micros()).unwrap_or(u64::MAX)).encode(e, ctx)
    }

    pub(crate) fn decode<C>(
        d: &mut Decoder<'_>,
        ctx: &mut C,
    ) -> Result<Option<Duration>, minicbor::decode::Error> {
        Ok(Option::<u64>::decode(d, ctx)?.map(Duration::from_micros))
    }
}
