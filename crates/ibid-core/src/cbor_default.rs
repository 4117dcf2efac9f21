//! Encodings for fields of a policy that take no bytes while they have their default. An absent field decodes as its
//! default.

/// Encodes a bool whose default is `true`.
pub(crate) mod true_by_default {
    use minicbor::encode::Write;
    use minicbor::{Decoder, Encoder};

    pub(crate) fn encode<C, W: Write>(
        value: &bool,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.bool(*value)?.ok()
    }

    pub(crate) fn decode<C>(d: &mut Decoder<'_>, _: &mut C) -> Result<bool, minicbor::decode::Error> {
        d.bool()
    }

    pub(crate) fn is_nil(value: &bool) -> bool {
        *value
    }

    pub(crate) fn nil() -> Option<bool> {
        Some(true)
    }
}

/// Encodes an optional duration in microseconds.
pub(crate) mod optional_micros {
    use std::time::Duration;

    use minicbor::encode::Write;
    use minicbor::{Decoder, Encoder};

    pub(crate) fn encode<C, W: Write>(
        length: &Option<Duration>,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        match length {
            Some(length) => e.u64(u64::try_from(length.as_micros()).unwrap_or(u64::MAX))?.ok(),
            None => e.null()?.ok(),
        }
    }

    pub(crate) fn decode<C>(
        d: &mut Decoder<'_>,
        _: &mut C,
    ) -> Result<Option<Duration>, minicbor::decode::Error> {
        d.u64().map(|micros| Some(Duration::from_micros(micros)))
    }

    pub(crate) fn is_nil(length: &Option<Duration>) -> bool {
        length.is_none()
    }

    pub(crate) fn nil() -> Option<Option<Duration>> {
        Some(None)
    }
}
