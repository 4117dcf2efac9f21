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
    /// Outcomes after which it will never be executed. They count only of an instant after the Attempt's end.
    pub not_executed: Vec<String>,
    /// The body of the answer to be kept, as it stands in the payload.
    pub body: Pointer,
    /// The source's own id of what was done.
    pub provider_id: Option<Pointer>,
    /// The id of the event, where the signature does not cover one or the payload's is to count.
    pub event: Option<Pointer>,
    /// When it happened: seconds or milliseconds since the epoch, or as RFC 3339 writes it. None: when it arrived, and then
    /// `not_executed` must be empty.
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
    /// How long before its arrival the event was: at least, or at most if it frees the key.
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
                let at = at.ok_or(Lacks("event_time"))?;
                let signed_at = verified.signed_at.unwrap_or(now_secs);
                match what {
                    Found::NotExecuted => age_at_most(at, signed_at.max(now_secs)),
                    _ => age_at_least(at, signed_at),
                }
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
fn age_at_least(happened_us: i64, signed_at: i64) -> Duration {
    between(happened_us, signed_at, -RESOLUTION_US)
}

/// How long before its arrival the event was, at most: a key that is freed for an event from before the Attempt's end
/// may be executed twice. So the time since its signature counts, by our clock if that makes it older, and up to a
/// second is added for what whole seconds leave open.
fn age_at_most(happened_us: i64, arrived_at: i64) -> Duration {
    between(happened_us, arrived_at, RESOLUTION_US)
}

fn between(happened_us: i64, then: i64, more_us: i64) -> Duration {
    let micros = then.saturating_mul(1_000_000).saturating_sub(happened_us).saturating_add(more_us);
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
        assert_eq!(age_at_least(at(100.0), 100), Duration::ZERO);
        assert_eq!(age_at_least(at(99.0), 100), Duration::ZERO, "both may be rounded down");
        assert_eq!(age_at_least(at(40.0), 100), Duration::from_secs(59));
        assert_eq!(age_at_least(at(130.0), 100), Duration::ZERO, "an event of the future has no age");
        assert!(age_at_least(i64::MIN, i64::MAX) > Duration::from_secs(1 << 40), "no sum overflows");
    }

    #[test]
    fn the_age_of_an_event_that_frees_the_key_is_never_understated() {
        let age = |outcome: &str, happened: i64, signed_at, now| {
            let payload = format!(r#"{{"is":"{outcome}","key":"k","at":{happened}}}"#);
            let verified = Verified { signed_at: Some(signed_at), event: Some("evt".into()) };
            let said = mapping().read("psp", &verified, &payload.into(), now, 0);
            said.expect("it can be read").expect("it says something").age
        };
        let secs = Duration::from_secs;
        assert_eq!(age("void", 100, 100, 100), secs(1), "what came at the second's end is rounded up");
        assert_eq!(age("void", 40, 100, 100), secs(61));
        assert_eq!(age("void", 40, 100, 160), secs(121), "it was under way for a minute");
        assert_eq!(age("void", 40, 100, 50), secs(61), "a clock of ours that is late makes it no younger");
        assert_eq!(age("void", 130, 100, 100), Duration::ZERO);
        assert_eq!(age("paid", 40, 100, 160), secs(59), "what was executed stays so");
        assert!(age_at_most(i64::MIN, i64::MAX) > Duration::from_secs(1 << 40), "no sum overflows");
    }

    fn at(seconds: f64) -> i64 {
        (seconds * 1e6) as i64
    }

    fn mapping() -> Mapping {
        let pointer = |text| Pointer::parse(text).expect("a pointer");
        Mapping {
            tenant: TenantAt::Only(Tenant::only()),
            operation: Operation { method: "POST".into(), path: "/pay".into() },
            key: pointer("/key"),
            outcome: pointer("/is"),
            executed: vec![("paid".to_owned(), 201)],
            not_executed: vec!["void".to_owned()],
            body: pointer(""),
            provider_id: None,
            event: None,
            event_time: Some(pointer("/at")),
        }
    }
}
