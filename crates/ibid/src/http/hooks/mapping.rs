//! What a webhook's payload says, by JSON pointers: which record, and what became of it. It must not know signatures.

use std::time::Duration;

use bytes::Bytes;
use ibid_core::evidence::EventName;
use ibid_core::fingerprint::Pointer;
use ibid_core::key::Key;
use ibid_core::machine::{Answer, Found};
use ibid_core::response::Response;
use ibid_core::scope::{Identity, Operation, Tenant};
use serde::de::IgnoredAny;

use super::instant;
use super::signature::Verified;

/// Where a source's payload says what.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Whose record it is. Without it tenant A could be given tenant B's payment.
    pub tenant: TenantAt,
    /// What the record's key was used for: method and concrete path.
    pub operation: Operation,
    /// The client's key.
    pub key: Pointer,
    /// What became of it.
    pub outcome: Pointer,
    /// Outcomes that say it was executed, each with the status of the answer to be kept. A decline is an answer.
    pub executed: Vec<(String, u16)>,
    /// Outcomes after which it will never be executed.
    pub not_executed: Vec<String>,
    /// The body of the answer to be kept, as it stands in the payload.
    pub body: Pointer,
    /// The source's own id of what was done.
    pub provider_id: Option<Pointer>,
    /// The id of the event, where the signature does not cover one or the payload's is to count.
    pub event: Option<Pointer>,
    /// When it happened: seconds or milliseconds since the epoch, or as RFC 3339 writes it. None: when it was signed.
    pub event_time: Option<Pointer>,
}

/// Where the tenant of a record is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantAt {
    /// There is one tenant, and this is it: for deployments that have no others.
    Only(Tenant),
    /// In the payload.
    Pointer(Pointer),
}

/// What a payload says.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) identity: Identity,
    pub(super) what: Found,
    pub(super) name: EventName,
    /// How long before its arrival the event was, at least.
    pub(super) age: Duration,
}

/// What a payload lacks, in the words of the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lacks(pub(super) &'static str);

impl Mapping {
    /// What the payload says; none if its outcome is not one that counts.
    pub(super) fn read(
        &self,
        source: &str,
        verified: &Verified,
        payload: &Bytes,
        now_secs: i64,
        response_version: u32,
    ) -> Result<Option<Said>, Lacks> {
        if serde_json::from_slice::<IgnoredAny>(payload).is_err() {
            return Err(Lacks("JSON"));
        }
        let outcome = text(&self.outcome, payload).ok_or(Lacks("outcome"))?;
        let executed = self.executed.iter().find(|(value, _)| *value == outcome).map(|(_, status)| *status);
        let what = match executed {
            Some(status) => Found::Executed(self.answer(status, payload, response_version)?),
            None if self.not_executed.contains(&outcome) => Found::NotExecuted,
            None => return Ok(None),
        };
        let tenant = match &self.tenant {
            TenantAt::Only(tenant) => tenant.clone(),
            TenantAt::Pointer(pointer) => {
                let name = text(pointer, payload).ok_or(Lacks("tenant"))?;
                Tenant::new(&name).map_err(|_| Lacks("tenant"))?
            }
        };
        let key = text(&self.key, payload).ok_or(Lacks("key"))?;
        let key = Key::stored(&key).map_err(|_| Lacks("key"))?;
        let event = match &self.event {
            Some(pointer) => text(pointer, payload),
            None => verified.event.clone(),
        };
        let event = event.filter(|event| is_event(event)).ok_or(Lacks("event"))?;
        let age = match &self.event_time {
            Some(pointer) => {
                let at = text(pointer, payload).and_then(|text| instant::parse(&text));
                age(at.ok_or(Lacks("event_time"))?, verified.signed_at.unwrap_or(now_secs))
            }
            None => Duration::ZERO,
        };
        Ok(Some(Said {
            identity: Identity { tenant, operation: self.operation.clone(), key },
            what,
            name: EventName { source: source.to_owned(), event },
            age,
        }))
    }

    fn answer(&self, status: u16, payload: &Bytes, response_version: u32) -> Result<Answer, Lacks> {
        let body = self.body.find(payload).ok_or(Lacks("body"))?;
        let json = Bytes::from_static(b"application/json");
        let response = Response {
            status,
            headers: vec![("content-type".to_owned(), json)],
            body: payload.slice_ref(body),
            trailers: Vec::new(),
            version: response_version,
        };
        let provider_id = self.provider_id.as_ref().and_then(|pointer| text(pointer, payload));
        Ok(Answer { status, retry_after: false, kept: Some(response.to_bytes()), provider_id })
    }
}

/// How long before its signature the event was, at least. Both instants are of the source's clock, so that it need not
/// agree with ours; they are whole seconds, so up to one of them is not counted.
fn age(happened_us: i64, signed_at: i64) -> Duration {
    let signed_us = signed_at.saturating_mul(1_000_000);
    let micros = signed_us.saturating_sub(happened_us).saturating_sub(RESOLUTION_US);
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A string as it reads, a number or a truth value as it is written.
fn text(pointer: &Pointer, payload: &[u8]) -> Option<String> {
    let part = pointer.find(payload)?;
    match part.first()? {
        b'"' => serde_json::from_slice(part).ok(),
        b'{' | b'[' | b'n' => None,
        _ => String::from_utf8(part.to_vec()).ok(),
    }
}

/// An id that may stand in a history and an index.
fn is_event(event: &str) -> bool {
    !event.is_empty() && event.len() <= EVENT_LEN_MAX && !event.chars().any(char::is_control)
}

/// Longest id of an event. Sources send some forty bytes; this much fits every index.
const EVENT_LEN_MAX: usize = 255;

/// What an instant in whole seconds leaves open.
const RESOLUTION_US: i64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_events_age_is_never_overstated() {
        let at = |seconds: f64| (seconds * 1e6) as i64;
        assert_eq!(age(at(100.0), 100), Duration::ZERO);
        assert_eq!(age(at(99.0), 100), Duration::ZERO, "both may be rounded down");
        assert_eq!(age(at(40.0), 100), Duration::from_secs(59));
        assert_eq!(age(at(130.0), 100), Duration::ZERO, "an event of the future has no age");
        assert!(age(i64::MIN, i64::MAX) > Duration::from_secs(1 << 40), "no sum overflows");
    }
}
