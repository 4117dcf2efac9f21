//! What a webhook's payload says, by JSON pointers: of which record or Effect, and what became of it. It must not know
//! signatures.

use std::time::Duration;

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

/// Where a source's payload says what.
#[derive(Clone, Debug)]
pub struct HookMapping {
    /// What it speaks of.
    pub target: HookTarget,
    /// What became of it.
    pub outcome: Pointer,
    /// Outcomes that say it was executed, each with the status of the answer to be kept. A decline is an answer.
    pub executed: Vec<(String, u16)>,
    /// Outcomes after which it will never be executed. They count only of an instant after the Attempt's or call's end.
    pub not_executed: Vec<String>,
    /// The body of the answer to be kept, as it stands in the payload; of an Effect, its result.
    pub body: Pointer,
    /// The source's own id of what was done, to be kept. An Effect is found by it only if [`HookMapping::target`] says so.
    pub provider_id: Option<Pointer>,
    /// The id of the event, where the signature does not cover one or the payload's is to count.
    pub event: Option<Pointer>,
    /// When it happened: seconds or milliseconds since the epoch, or as RFC 3339 writes it. None: when it arrived, and then
    /// `not_executed` must be empty.
    pub event_time: Option<Pointer>,
}

/// How a payload names what it speaks of. Each way leads to one tenant's alone, or tenant A could be given tenant B's
/// payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookTarget {
    /// A record.
    Record {
        /// Whose it is.
        tenant: TenantAt,
        /// What its key was used for: method and concrete path.
        operation: Operation,
        /// The client's key.
        key: Pointer,
    },
    /// An Effect, by the key that the provider was called under.
    DownstreamKey(Pointer),
    /// An Effect, by the provider's own id.
    ProviderId(ProviderIdAt),
    /// An Effect, by the key; where the payload has no key of ours, by the provider's id.
    Either {
        /// The key that the provider was called under.
        downstream_key: Pointer,
        /// The provider's own id.
        provider_id: ProviderIdAt,
    },
}

/// Where the provider's own id of an Effect is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderIdAt {
    /// Of which kind its Effects are: another provider may use the same ids.
    pub kind: String,
    /// The id.
    pub id: Pointer,
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
pub(super) struct MappedEvent {
    pub(super) named: EventTarget,
    pub(super) what: Observation,
    pub(super) name: EventName,
    /// How long before its arrival the event was: at least, or at most if it frees the key.
    pub(super) age: Duration,
}

/// What a payload speaks of.
#[derive(Clone, Debug)]
pub(super) enum EventTarget {
    Record(Identity),
    Effect(EffectRef),
}

/// What a payload lacks, in the words of the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingField(pub(super) &'static str);

impl HookMapping {
    /// What the payload says; none if its outcome is not one that counts, or it is no call of ours.
    pub(super) fn read(
        &self,
        source: &str,
        verified: &VerifiedHook,
        payload: &Bytes,
        now_secs: i64,
        response_version: u32,
    ) -> Result<Option<MappedEvent>, MissingField> {
        if serde_json::from_slice::<IgnoredAny>(payload).is_err() {
            return Err(MissingField("JSON"));
        }
        let outcome = text(&self.outcome, payload).ok_or(MissingField("outcome"))?;
        let executed = self.executed.iter().find(|(value, _)| *value == outcome).map(|(_, status)| *status);
        let what = match executed {
            Some(status) => Observation::Executed(self.answer(status, payload, response_version)?),
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

    fn answer(
        &self,
        status: u16,
        payload: &Bytes,
        response_version: u32,
    ) -> Result<AttemptResponse, MissingField> {
        let body = self.body.find(payload).ok_or(MissingField("body"))?;
        let json = Bytes::from_static(b"application/json");
        let response = Response {
            status,
            headers: vec![("content-type".to_owned(), json)],
            body: payload.slice_ref(body),
            trailers: Vec::new(),
            version: response_version,
        };
        let provider_id = self.provider_id.as_ref().and_then(|pointer| text(pointer, payload));
        if provider_id.as_ref().is_some_and(|id| !is_name(id)) {
            return Err(MissingField("provider_id"));
        }
        Ok(AttemptResponse {
            status,
            retry_after: false,
            kept: Some(response.to_bytes()),
            provider_id,
            proof: None,
        })
    }
}

impl HookTarget {
    /// What the payload speaks of; none if that is no call of ours.
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

/// An id of the source's that may stand in a history and an index.
fn is_name(id: &str) -> bool {
    !id.is_empty() && id.len() <= ID_LEN_MAX && !id.chars().any(char::is_control)
}

/// Longest id of an event, or of what was done. Sources send some forty bytes; this much fits every index.
const ID_LEN_MAX: usize = 255;

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
            let verified = VerifiedHook { signed_at: Some(signed_at), event: Some("evt".into()) };
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
        assert_eq!(read(&by_key, other), "not ours", "somebody else calls that provider, too");
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
