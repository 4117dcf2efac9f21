//! Encodes the result of a call that was made but could not be recorded, together with the response if the effect owes one.
//!
//! The bytes are stored in the effect's `result` until a worker records it.

use bytes::{BufMut, Bytes, BytesMut};
use ibid_core::effect::StoredEffect;
use ibid_core::response::Response;

use super::handler::CallResult;

/// Returns the bytes to store as the effect's `result`.
pub(super) fn encode_unrecorded(effect: &StoredEffect, made: &CallResult) -> Bytes {
    if !effect.owes {
        return made.result.clone();
    }
    let response = made.response.as_ref().map(Response::to_bytes).unwrap_or_default();
    let mut bytes = BytesMut::with_capacity(MARK.len() + LEN + made.result.len() + response.len());
    bytes.put_slice(MARK);
    bytes.put_u64(made.result.len() as u64);
    bytes.put_slice(&made.result);
    bytes.put_slice(&response);
    bytes.freeze()
}

/// Returns the stored, unrecorded result of an effect, or `None` if there is none or it cannot be read.
pub(super) fn decode_unrecorded(effect: &StoredEffect) -> Option<CallResult> {
    let (stored, provider_id) = (effect.result.as_ref()?, effect.provider_id.clone());
    if !effect.owes {
        return Some(CallResult { result: stored.clone(), provider_id, response: None });
    }
    let rest = stored.slice_ref(stored.strip_prefix(MARK)?);
    let (len, _) = rest.split_first_chunk::<LEN>()?;
    let result_to = usize::try_from(u64::from_be_bytes(*len)).ok()?.checked_add(LEN)?;
    let response = match rest.get(result_to..)? {
        [] => None,
        bytes => Some(Response::from_bytes(bytes).ok()?),
    };
    Some(CallResult { result: rest.slice(LEN..result_to), provider_id, response })
}

/// Prefix of an unrecorded result that has room for a response. Earlier versions stored the result alone. Such bytes are
/// treated as unreadable, so that the response is fetched again.
const MARK: &[u8] = b"ibid:kept:1\n";

/// Bytes of the length field in front of the result.
const LEN: usize = size_of::<u64>();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::record_result::tests::claimed_effect;

    fn round_trip(owes: bool, made: &CallResult) -> Option<CallResult> {
        let mut effect = StoredEffect { owes, ..claimed_effect(Default::default()) };
        effect.result = Some(encode_unrecorded(&effect, made));
        effect.provider_id = made.provider_id.clone();
        decode_unrecorded(&effect)
    }

    #[test]
    fn what_was_made_is_read_as_it_was_kept() {
        let response = Response::plain(201, "text/plain", "paid".to_owned());
        for result in ["", "receipt", "ibid:kept:1\n"] {
            for response in [None, Some(response.clone())] {
                let made = CallResult { result: result.into(), provider_id: Some("ch_1".into()), response };
                let read = round_trip(true, &made).expect("it can be read");
                assert_eq!(
                    (read.result, read.provider_id, read.response),
                    (made.result, made.provider_id, made.response)
                );
            }
        }
    }

    #[test]
    fn a_result_is_kept_as_it_is_where_no_response_is_owed() {
        let effect = claimed_effect(Default::default());
        let made = CallResult { result: "receipt".into(), ..CallResult::default() };
        assert_eq!(encode_unrecorded(&effect, &made), made.result);
        assert_eq!(round_trip(false, &made).unwrap().result, made.result);
    }

    #[test]
    fn what_can_not_be_read_is_not_known_to_be_made() {
        let made = CallResult {
            response: Some(Response::plain(201, "text/plain", "paid".to_owned())),
            ..CallResult::default()
        };
        let mut effect = StoredEffect { owes: true, ..claimed_effect(Default::default()) };
        let whole = encode_unrecorded(&effect, &made);
        assert!(decode_unrecorded(&effect).is_none());
        for bytes in [&b"receipt"[..], MARK, &whole[..MARK.len() + LEN - 1], &whole[..whole.len() - 1]] {
            effect.result = Some(Bytes::copy_from_slice(bytes));
            assert!(decode_unrecorded(&effect).is_none(), "{bytes:?}");
        }
    }
}
