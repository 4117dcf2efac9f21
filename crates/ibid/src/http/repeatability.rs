//! The header fields of profile `repeatability`: the time when a request was first sent, and its result.

use std::time::UNIX_EPOCH;

use http::{HeaderMap, HeaderValue};
use ibid_core::machine::BeginRequest;
use ibid_core::policy::{AfterExpiry, Policy, Profile};
use ibid_core::refusal::Refusal;
use ibid_core::repeatability;
use ibid_core::store::StoreError;
use ibid_core::time::Timestamp;

use super::hooks;
use crate::ibid::Ibid;

/// Sets `Repeatability-Result` in profile `repeatability`: whether the request was accepted. The value of an upstream is
/// replaced, because only the layer knows what a retry will get.
pub(super) fn mark(headers: &mut HeaderMap, profile: Profile, is_accepted: bool) {
    if profile == Profile::Repeatability {
        let result = if is_accepted { "accepted" } else { "rejected" };
        headers.insert(RESULT, HeaderValue::from_static(result));
    }
}

/// Returns when the client first sent this request, if the policy limits its age and the field is there.
pub(super) fn first_sent(policy: &Policy, headers: &HeaderMap) -> Result<Option<Timestamp>, Refusal> {
    if policy.request_age_max().is_none() {
        return Ok(None);
    }
    let mut lines = headers.get_all(policy.first_sent_field()).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Ok(None),
        (Some(line), None) => imf_fixdate(line).map(Some).ok_or(Refusal::FirstSentInvalid),
        (Some(_), Some(_)) => Err(Refusal::FirstSentInvalid),
    }
}

/// Returns whether the request was first sent too long ago to run under a new key, by this node's clock.
pub(super) fn is_too_old(policy: &Policy, first_sent: Option<Timestamp>) -> bool {
    let (Some(first_sent), Some(age_max)) = (first_sent, policy.request_age_max()) else { return false };
    repeatability::is_too_old(first_sent, hooks::now(), age_max)
}

/// Returns whether no live record of this request exists, so that it would run as new.
pub(super) async fn is_new(ibid: &Ibid, ask: &BeginRequest) -> Result<bool, StoreError> {
    let ids = std::iter::once(ask.id).chain(ask.previous.iter().map(|name| name.id));
    let stored = ibid.engine().load_all(ids.collect()).await?;
    Ok(stored.into_iter().flatten().all(|stored| {
        stored.record.is_expired(stored.now) && stored.record.policy.after_expiry == AfterExpiry::Execute
    }))
}

/// Returns whether the request carries a field of the profile.
pub(super) fn is_asked_for(policy: &Policy, headers: &HeaderMap) -> bool {
    let mut fields = policy.key_from.header_names().chain([policy.first_sent_field()]);
    fields.any(|name| headers.contains_key(name))
}

/// Parses a date in the only form that senders may use (RFC 9110, 5.6.7). The obsolete forms are refused, as OASIS demands.
fn imf_fixdate(line: &HeaderValue) -> Option<Timestamp> {
    let text = line.to_str().ok()?;
    let at = httpdate::parse_http_date(text).ok()?;
    // The parser accepts all three forms and any day of the week. Only this form is formatted back to the same text.
    if httpdate::fmt_http_date(at) != text {
        return None;
    }
    let since = at.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp::from_micros(i64::try_from(since.as_micros()).ok()?))
}

const RESULT: &str = "repeatability-result";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_imf_fixdate_says_when_a_request_was_first_sent() {
        let read = |text: &str| imf_fixdate(&HeaderValue::from_str(text).unwrap());
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Timestamp::from_micros(784_111_777_000_000)));
        for text in [
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 +0000",
            "1994-11-06T08:49:37Z",
            "784111777",
            "",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
