//! Reads a webhook's payload by JSON pointers: which record or effect it is about, and its outcome. It must not know
//! signatures.

use std::time::Duration;

use std::sync::Arc;

use bytes::Bytes;
use ibid_core::effect::is_downstream_key;
use ibid_core::evidence::{EffectRef, EventName};
use ibid_core::fingerprint::Pointer;
use ibid_core::key::Key;
use ibid_core::machine::{AttemptResponse, Observation};
use ibid_core::response::Response;
use ibid_core::scope::{Identity, Operation, Tenant};
use serde::de::IgnoredAny;

use super::signature::VerifiedHook;
use super::timestamp;

/// The pointers to each fact in the payload of a source.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HookMapping {
    /// The record or effect that the payload is about.
    pub target: HookTarget,
    /// Pointer to the outcome.
    pub outcome: Pointer,
    /// Outcomes that mean "executed", each with the status of the response to be stored. A decline is a response, too.
    pub executed: Vec<(String, u16)>,
    /// Outcomes after which it will never be executed. They count only if the event happened after the end of the attempt or
    /// call.
    pub not_executed: Vec<String>,
    /// The body of the response to be stored, copied from the payload as is; for an effect, its result.
    pub body: Pointer,
    /// The source's own id of the object that was created, to be stored. An effect is found by it only if
    /// [`HookMapping::target`] says so.
    pub provider_id: Option<Pointer>,
    /// The id of the event, if the signature covers none or the id in the payload is to be used instead.
    pub event: Option<Pointer>,
    /// The time of the event: seconds or milliseconds since the epoch, or RFC 3339. `None` means the time of its arrival, and
    /// `not_executed` must then be empty.
    pub event_time: Option<Pointer>,
}

/// The way in which a payload names its record or effect. Each way names those of one tenant only; otherwise tenant A could
/// get tenant B's payment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a tool that shows hooks has to show every target")]
pub enum HookTarget {
    /// A record, by its client's key.
    Record {
        /// The tenant that owns the record.
        tenant: TenantAt,
        /// The operation that the key was used for: method and concrete path.
        operation: Operation,
        /// Pointer to the client's key.
        key: Pointer,
    },
    /// An effect, by the key that the provider was called under.
    DownstreamKey(Pointer),
    /// An effect, by the provider's own id.
    ProviderId(ProviderIdAt),
    /// An effect, by the downstream key, or by the provider's id if the payload has no key of ours.
    Either {
        /// The key that the provider was called under.
        downstream_key: Pointer,
        /// The provider's own id.
        provider_id: ProviderIdAt,
    },
}

/// The provider's own id of an effect, in the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderIdAt {
    /// The kind of its effects. Another provider may use the same ids.
    pub kind: String,
    /// Pointer to the id.
    pub id: Pointer,
}

impl ProviderIdAt {
    /// Creates the provider's id of an effect of this kind, at this pointer.
    pub fn new(kind: impl Into<String>, id: Pointer) -> ProviderIdAt {
        ProviderIdAt { kind: kind.into(), id }
    }
}

/// The source of a record's tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TenantAt {
    /// Always this tenant, for deployments that have only one.
    Only(Tenant),
    /// The tenant's name in the payload.
    Pointer(Pointer),
}

/// An event, as the mapping reads it from a payload.
#[derive(Clone, Debug)]
pub(super) struct MappedEvent {
    pub(super) named: EventTarget,
    pub(super) what: Observation,
    pub(super) name: EventName,
    /// Time from the event to its arrival: a lower bound, or an upper bound if the event releases the key.
    pub(super) age: Duration,
}

/// The record or effect that a payload is about.
#[derive(Clone, Debug)]
pub(super) enum EventTarget {
    Record(Identity),
    Effect(EffectRef),
}

/// The mapping's name for a field that is missing or invalid in a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingField(pub(super) &'static str);

impl HookMapping {
    /// Creates a mapping of payloads that name their record or effect and their outcome. No outcome means anything yet, and
    /// the whole payload is the body.
    pub fn new(target: HookTarget, outcome: Pointer) -> HookMapping {
        HookMapping {
            target,
            outcome,
            executed: Vec::new(),
            not_executed: Vec::new(),
            body: Pointer::whole(),
            provider_id: None,
            event: None,
            event_time: None,
        }
    }

    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut HookMapping)) -> HookMapping {
        change(&mut self);
        self
    }

    /// Reads a payload. Returns `None` if its outcome is not in the mapping, or if it is about a call that is not ours.
    pub(super) fn read(
        &self,
        source: &str,
        verified: &VerifiedHook,
        payload: &Bytes,
        now_secs: i64,
    ) -> Result<Option<MappedEvent>, MissingField> {
        if serde_json::from_slice::<IgnoredAny>(payload).is_err() {
            return Err(MissingField("JSON"));
        }
        let outcome = text(&self.outcome, payload).ok_or(MissingField("outcome"))?;
        let executed = self.executed.iter().find(|(value, _)| *value == outcome).map(|(_, status)| *status);
        let what = match executed {
            Some(status) => Observation::Executed(self.answer(status, payload)?),
            None if self.not_executed.contains(&outcome) => Observation::NotExecuted,
            None => return Ok(None),
        };
        let Some(named) = self.target.read(payload)? else { return Ok(None) };
        let event = match &self.event {
            Some(pointer) => text(pointer, payload),
            None => verified.event.clone(),
        };
        let event = event.filter(|event| is_name(event)).ok_or(MissingField("event"))?;
        let age = match &self.event_time {
            Some(pointer) => {
                let at = text(pointer, payload).and_then(|text| timestamp::parse(&text));
                let at = at.ok_or(MissingField("event_time"))?;
                let signed_at = verified.signed_at.unwrap_or(now_secs);
                match what {
                    Observation::NotExecuted => age_at_most(at, signed_at.max(now_secs)),
                    _ => age_at_least(at, signed_at),
                }
            }
            None => Duration::ZERO,
        };
        Ok(Some(MappedEvent { named, what, name: EventName { source: source.to_owned(), event }, age }))
    }

    fn answer(&self, status: u16, payload: &Bytes) -> Result<AttemptResponse, MissingField> {
        let body = self.body.find(payload).ok_or(MissingField("body"))?;
        let json = Bytes::from_static(b"application/json");
        let response = Response {
            status,
            headers: vec![("content-type".to_owned(), json)],
            body: payload.slice_ref(body),
            trailers: Vec::new(),
        };
        let provider_id = self.provider_id.as_ref().and_then(|pointer| text(pointer, payload));
        if provider_id.as_ref().is_some_and(|id| !is_name(id)) {
            return Err(MissingField("provider_id"));
        }
        Ok(AttemptResponse {
            status,
            retry_after: false,
            kept: Some(Arc::new(response)),
            provider_id,
            proof: None,
        })
    }
}

impl HookTarget {
    /// Finds the record or effect that the payload is about. Returns `None` if the call is not ours.
    fn read(&self, payload: &[u8]) -> Result<Option<EventTarget>, MissingField> {
        let effect = match self {
            HookTarget::Record { tenant, operation, key } => {
                return record(tenant, operation, key, payload)
                    .map(|identity| Some(EventTarget::Record(identity)));
            }
            HookTarget::DownstreamKey(pointer) => {
                let key = text(pointer, payload).ok_or(MissingField("downstream_key"))?;
                is_downstream_key(&key).then_some(EffectRef::DownstreamKey(key))
            }
            HookTarget::ProviderId(at) => Some(at.read(payload)?),
            HookTarget::Either { downstream_key, provider_id } => match text(downstream_key, payload) {
                Some(key) if is_downstream_key(&key) => Some(EffectRef::DownstreamKey(key)),
                _ => Some(provider_id.read(payload)?),
            },
        };
        Ok(effect.map(EventTarget::Effect))
    }
}

impl ProviderIdAt {
    fn read(&self, payload: &[u8]) -> Result<EffectRef, MissingField> {
        let id = text(&self.id, payload).filter(|id| is_name(id)).ok_or(MissingField("provider_id"))?;
        Ok(EffectRef::ProviderId { kind: self.kind.clone(), id })
    }
}

fn record(
    tenant: &TenantAt,
    operation: &Operation,
    key: &Pointer,
    payload: &[u8],
) -> Result<Identity, MissingField> {
    let tenant = match tenant {
        TenantAt::Only(tenant) => tenant.clone(),
        TenantAt::Pointer(pointer) => {
            let name = text(pointer, payload).ok_or(MissingField("tenant"))?;
            Tenant::new(&name).map_err(|_| MissingField("tenant"))?
        }
    };
    let key = text(key, payload).ok_or(MissingField("key"))?;
    let key = Key::stored(&key).map_err(|_| MissingField("key"))?;
    Ok(Identity { tenant, operation: operation.clone(), key })
}

/// Returns a lower bound of the time from the event to its signature. Both instants come from the source's clock, so that it
/// need not agree with ours. They are whole seconds, so one second is subtracted.
fn age_at_least(happened_us: i64, signed_at: i64) -> Duration {
    between(happened_us, signed_at, -RESOLUTION_US)
}

/// Returns an upper bound of the time from the event to its arrival. If a key were released by an event from before the end
/// of the attempt, its request could be executed twice. So the time since the signature counts, by our clock if that makes
/// the event older, and one second is added, because the instants are whole seconds.
fn age_at_most(happened_us: i64, arrived_at: i64) -> Duration {
    between(happened_us, arrived_at, RESOLUTION_US)
}

fn between(happened_us: i64, then: i64, more_us: i64) -> Duration {
    let micros = then.saturating_mul(1_000_000).saturating_sub(happened_us).saturating_add(more_us);
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Returns a JSON string decoded, and a number or boolean as it is written. `None` for anything else.
fn text(pointer: &Pointer, payload: &[u8]) -> Option<String> {
    let part = pointer.find(payload)?;
    match part.first()? {
        b'"' => serde_json::from_slice(part).ok(),
        b'{' | b'[' | b'n' => None,
        _ => String::from_utf8(part.to_vec()).ok(),
    }
}

/// Returns whether an id of the source's may be stored in a history and an index.
fn is_name(id: &str) -> bool {
    !id.is_empty() && id.len() <= ID_LEN_MAX && !id.chars().any(char::is_control)
}

/// Longest id of an event or a provider's object, in bytes. Sources send about forty; this many fit every index.
const ID_LEN_MAX: usize = 255;

/// Uncertainty of an instant in whole seconds.
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
    fn age_of_a_releasing_event_is_never_understated() {
        let age = |outcome: &str, happened: i64, signed_at, now| {
            let payload = format!(r#"{{"is":"{outcome}","key":"k","at":{happened}}}"#);
            let verified = VerifiedHook { signed_at: Some(signed_at), event: Some("evt".into()) };
            let event = mapping().read("psp", &verified, &payload.into(), now);
            event.expect("the payload is readable").expect("the outcome is in the mapping").age
        };
        let secs = Duration::from_secs;
        assert_eq!(age("void", 100, 100, 100), secs(1), "the end of the second is rounded up");
        assert_eq!(age("void", 40, 100, 100), secs(61));
        assert_eq!(age("void", 40, 100, 160), secs(121), "the delivery took a minute");
        assert_eq!(age("void", 40, 100, 50), secs(61), "our clock, if slow, does not make it younger");
        assert_eq!(age("void", 130, 100, 100), Duration::ZERO);
        assert_eq!(age("paid", 40, 100, 160), secs(59), "the time of delivery does not count for `executed`");
        assert!(age_at_most(i64::MIN, i64::MAX) > Duration::from_secs(1 << 40), "no sum overflows");
    }

    #[test]
    fn an_effect_is_named_by_our_key_before_the_providers_id() {
        let pointer = |text| Pointer::parse(text).expect("a pointer");
        let provider_id = ProviderIdAt { kind: "charge".into(), id: pointer("/id") };
        let by_key = HookTarget::DownstreamKey(pointer("/key"));
        let by_id = HookTarget::ProviderId(provider_id.clone());
        let either = HookTarget::Either { downstream_key: pointer("/key"), provider_id };
        let read = |target: &HookTarget, payload: &str| match target.read(payload.as_bytes()) {
            Ok(Some(EventTarget::Effect(EffectRef::DownstreamKey(key)))) => format!("key {key}"),
            Ok(Some(EventTarget::Effect(EffectRef::ProviderId { kind, id }))) => format!("{kind} {id}"),
            Ok(Some(EventTarget::Record(_))) => "record".to_owned(),
            Ok(None) => "not ours".to_owned(),
            Err(MissingField(what)) => format!("lacks {what}"),
        };
        let ours = "ibid-00112233445566778899aabbccddeeff";
        let both = format!(r#"{{"key":"{ours}","id":"ch_1"}}"#);
        let other = r#"{"key":"order-7","id":"ch_1"}"#;
        assert_eq!(read(&by_key, &both), format!("key {ours}"));
        assert_eq!(read(&by_key, other), "not ours", "the provider has other callers, too");
        assert_eq!(read(&by_key, r#"{"id":"ch_1"}"#), "lacks downstream_key");
        assert_eq!(read(&by_id, &both), "charge ch_1");
        assert_eq!(read(&by_id, "{}"), "lacks provider_id");
        assert_eq!(read(&by_id, r#"{"id":""}"#), "lacks provider_id");
        assert_eq!(read(&either, &both), format!("key {ours}"));
        assert_eq!(read(&either, other), "charge ch_1");
        assert_eq!(read(&either, r#"{"id":7}"#), "charge 7");
        assert_eq!(read(&either, "{}"), "lacks provider_id");
    }

    fn at(seconds: f64) -> i64 {
        (seconds * 1e6) as i64
    }

    fn mapping() -> HookMapping {
        let pointer = |text| Pointer::parse(text).expect("a pointer");
        HookMapping {
            target: HookTarget::Record {
                tenant: TenantAt::Only(Tenant::only()),
                operation: Operation { method: "POST".into(), path: "/pay".into() },
                key: pointer("/key"),
            },
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
