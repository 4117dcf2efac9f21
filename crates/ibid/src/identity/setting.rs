//! The stored form of an identity: JSON text in one setting, changed by compare-and-set.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use ibid_core::policy::IdentityRules;
use ibid_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::{CopyMark, IdentityError, StoreIdentity};

/// The identity of a store's records, and the phase of its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentitySetting {
    /// Number of this identity in the store, from 1. A process acts only on the generation that it started with: after a
    /// change there and back the rules are the same, but the previous ids that have to be looked up are not.
    pub generation: u64,
    /// The phase, which decides whether processes may act on the identity.
    pub phase: IdentityPhase,
    /// Time for which a process may act on its last read of this setting. A change waits twice as long.
    pub valid_for: Duration,
    /// Set if the next identity may have a different tenant source, although records of this one are then lost to retries.
    pub is_abandoned: bool,
    /// Time of the retirement, by the store's clock; `None` if there was no record then.
    pub retired_at: Option<Timestamp>,
    /// The identity of this generation.
    pub current: StoreIdentity,
    /// Earlier identities whose ids are still looked up, newest first.
    pub previous: Vec<PreviousIdentity>,
    /// The part that the store plays, or played, in a copy.
    pub copy: Option<CopyMark>,
}

/// The phase of an identity, which decides whether processes may act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(clippy::exhaustive_enums, reason = "who reads a phase has to handle every one")]
pub enum IdentityPhase {
    /// Processes with this identity begin attempts.
    Active,
    /// No process may begin anything, but one that has not read this yet still can.
    Retiring,
    /// No process acts on it any more; the next start writes its own.
    Retired,
}

impl IdentityPhase {
    /// Returns the name of the phase.
    pub fn name(self) -> &'static str {
        match self {
            IdentityPhase::Active => "active",
            IdentityPhase::Retiring => "retiring",
            IdentityPhase::Retired => "retired",
        }
    }
}

/// An identity that was active before, whose ids are still looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousIdentity {
    /// The identity that was active.
    pub identity: StoreIdentity,
    /// Instant of the store's clock after which no record was created under it; `None` if there was no record at all.
    pub until: Option<Timestamp>,
}

impl IdentitySetting {
    /// Creates the setting for the first identity of a store.
    pub(super) fn first(current: &StoreIdentity, valid_for: Duration) -> IdentitySetting {
        IdentitySetting {
            generation: 1,
            phase: IdentityPhase::Active,
            valid_for: valid_for.clamp(VALID_FOR_MIN, VALID_FOR_MAX),
            is_abandoned: false,
            retired_at: None,
            current: current.clone(),
            previous: Vec::new(),
            copy: None,
        }
    }

    /// Returns the setting that a process with identity `next` writes when it starts after this one was retired. The caller has
    /// checked the tenant source. Identities with another tenant source are dropped, because ids under it cannot be computed.
    pub(super) fn succeeded_by(&self, next: &StoreIdentity, valid_for: Duration) -> IdentitySetting {
        let retired = PreviousIdentity { identity: self.current.clone(), until: self.retired_at };
        let all = std::iter::once(retired).chain(self.previous.iter().cloned());
        let may_be_found = |previous: &PreviousIdentity| {
            previous.identity.has_tenant_source_of(next)
                && !previous.identity.differences(next).is_empty()
                && previous.until.is_some()
        };
        IdentitySetting {
            generation: self.generation + 1,
            previous: all.filter(may_be_found).collect(),
            copy: self.copy.clone(),
            ..IdentitySetting::first(next, valid_for)
        }
    }

    /// Refuses to use the store while a copy keeps it closed. Every use of a store asks this, at its start and while it runs.
    ///
    /// # Errors
    ///
    /// Fails with the mark of the copy.
    pub fn check_open(&self) -> Result<(), IdentityError> {
        match self.copy.as_ref().filter(|mark| mark.closes()) {
            Some(mark) => Err(IdentityError::Closed(Box::new(mark.clone()))),
            None => Ok(()),
        }
    }

    /// Returns the setting for a start with the identity that was retired, with no other one in between.
    pub(crate) fn reactivate(&self) -> IdentitySetting {
        IdentitySetting {
            phase: IdentityPhase::Active,
            is_abandoned: false,
            retired_at: None,
            ..self.clone()
        }
    }

    /// Encodes the setting as the text that a store keeps.
    pub fn to_bytes(&self) -> Bytes {
        let text = Text {
            // A program that does not know copies must not start on a closed store, nor go on using it.
            format: if self.check_open().is_err() { FORMAT_CLOSED } else { FORMAT },
            generation: self.generation,
            phase: self.phase,
            valid_for_ms: u64::try_from(self.valid_for.as_millis()).unwrap_or(u64::MAX),
            abandoned: self.is_abandoned,
            retired_at_us: self.retired_at.map(Timestamp::as_micros),
            current: IdentityText::of(&self.current),
            previous: self.previous.iter().map(PreviousText::of).collect(),
            copy: self.copy.clone(),
        };
        // Maps with text keys, texts and numbers: nothing here can fail.
        Bytes::from(serde_json::to_vec(&text).expect("the identity can be written as JSON"))
    }

    /// Parses the text that [`IdentitySetting::to_bytes`] wrote.
    ///
    /// # Errors
    ///
    /// Fails if the text has another format, or rules that this version does not know.
    pub fn parse(bytes: &[u8]) -> Result<IdentitySetting, IdentityError> {
        let unreadable = |why: String| IdentityError::Unreadable(why);
        let format: Format = serde_json::from_slice(bytes).map_err(|error| unreadable(error.to_string()))?;
        if ![FORMAT, FORMAT_CLOSED].contains(&format.format) {
            return Err(unreadable(format!("format {} is not known here", format.format)));
        }
        let text: Text = serde_json::from_slice(bytes).map_err(|error| unreadable(error.to_string()))?;
        let previous = text.previous.into_iter().map(PreviousText::identity).collect::<Result<_, _>>();
        Ok(IdentitySetting {
            generation: text.generation,
            phase: text.phase,
            valid_for: Duration::from_millis(text.valid_for_ms).clamp(VALID_FOR_MIN, VALID_FOR_MAX),
            is_abandoned: text.abandoned,
            retired_at: text.retired_at_us.map(Timestamp::from_micros),
            current: text.current.identity()?,
            previous: previous?,
            copy: text.copy,
        })
    }
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct Text {
    format: u32,
    generation: u64,
    phase: IdentityPhase,
    valid_for_ms: u64,
    abandoned: bool,
    retired_at_us: Option<i64>,
    current: IdentityText,
    previous: Vec<PreviousText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    copy: Option<CopyMark>,
}

#[derive(Serialize, Deserialize)]
struct IdentityText {
    tenant: String,
    tenant_secret: Option<String>,
    defaults: BTreeMap<String, String>,
    routes: BTreeMap<String, BTreeMap<String, String>>,
}

#[derive(Serialize, Deserialize)]
struct PreviousText {
    until_us: Option<i64>,
    #[serde(flatten)]
    identity: IdentityText,
}

impl IdentityText {
    fn of(identity: &StoreIdentity) -> IdentityText {
        let routes = identity.routes.iter().map(|(route, rules)| (route.clone(), fields_of(rules)));
        IdentityText {
            tenant: identity.tenant.clone(),
            tenant_secret: identity.tenant_secret.clone(),
            defaults: fields_of(&identity.defaults),
            routes: routes.collect(),
        }
    }

    fn identity(self) -> Result<StoreIdentity, IdentityError> {
        let routes = self.routes.into_iter().map(|(route, fields)| Ok((route, rules_of(&fields)?)));
        Ok(StoreIdentity {
            tenant: self.tenant,
            tenant_secret: self.tenant_secret,
            defaults: rules_of(&self.defaults)?,
            routes: routes.collect::<Result<_, IdentityError>>()?,
        })
    }
}

impl PreviousText {
    fn of(previous: &PreviousIdentity) -> PreviousText {
        PreviousText {
            until_us: previous.until.map(Timestamp::as_micros),
            identity: IdentityText::of(&previous.identity),
        }
    }

    fn identity(self) -> Result<PreviousIdentity, IdentityError> {
        let until = self.until_us.map(Timestamp::from_micros);
        Ok(PreviousIdentity { identity: self.identity.identity()?, until })
    }
}

fn fields_of(rules: &IdentityRules) -> BTreeMap<String, String> {
    rules.fields().into_iter().map(|(field, value)| (field.to_owned(), value)).collect()
}

fn rules_of(fields: &BTreeMap<String, String>) -> Result<IdentityRules, IdentityError> {
    let texts = fields.iter().map(|(field, value)| (field.as_str(), value.as_str()));
    IdentityRules::parse(texts).map_err(|error| IdentityError::Unreadable(error.to_string()))
}

/// The name of the identity's setting in the store.
pub(crate) const SETTING: &str = "identity";

/// Shortest `valid_for`. With a shorter one, a process would do little but read the setting.
const VALID_FOR_MIN: Duration = Duration::from_millis(100);

/// Longest `valid_for`. With a longer one, no operator would wait for a change.
const VALID_FOR_MAX: Duration = Duration::from_secs(3600);

/// The format of the text. A version that does not know it refuses to start.
const FORMAT: u32 = 1;

/// The format of a text with a mark that closes the store.
const FORMAT_CLOSED: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use ibid_core::policy::Policy;

    fn retire(identity: &StoreIdentity, at: i64) -> IdentitySetting {
        IdentitySetting {
            phase: IdentityPhase::Retired,
            retired_at: Some(Timestamp::from_micros(at)),
            ..IdentitySetting::first(identity, VALID_FOR)
        }
    }

    fn stripe() -> StoreIdentity {
        let route = ("POST /payments".to_owned(), Policy::stripe().identity());
        StoreIdentity::of("t", IdentityRules::default(), [route].into_iter())
    }

    const VALID_FOR: Duration = Duration::from_secs(15);

    #[test]
    fn stored_setting_round_trips_as_readable_json() {
        let setting = retire(&StoreIdentity::new("t"), 7).succeeded_by(&stripe(), VALID_FOR);
        let text = setting.to_bytes();
        assert_eq!(IdentitySetting::parse(&text).unwrap(), setting);
        let text = String::from_utf8(text.to_vec()).unwrap();
        for part in [r#""phase":"active""#, r#""POST /payments":{"#, r#""scope":"tenant""#, r#""until_us":7"#]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn setting_of_another_format_is_refused() {
        for text in ["", "tenant=none", "{}", r#"{"format":2}"#] {
            let refused = IdentitySetting::parse(text.as_bytes());
            assert!(matches!(refused, Err(IdentityError::Unreadable(_))), "{text}");
        }
        let text = String::from_utf8(retire(&stripe(), 7).to_bytes().to_vec()).unwrap();
        let moon = text.replace(r#""scope":"tenant""#, r#""moon":"full""#);
        assert!(matches!(IdentitySetting::parse(moon.as_bytes()), Err(IdentityError::Unreadable(_))));
    }

    #[test]
    fn changing_there_and_back_keeps_the_identity_in_between() {
        let plain = StoreIdentity::new("t");
        let there = retire(&plain, 7).succeeded_by(&stripe(), VALID_FOR);
        let back = IdentitySetting {
            phase: IdentityPhase::Retired,
            retired_at: Some(Timestamp::from_micros(9)),
            ..there
        };
        let back = back.succeeded_by(&plain, VALID_FOR);
        let previous: Vec<_> = back.previous.iter().map(|previous| &previous.identity).collect();
        assert_eq!((back.generation, previous), (3, vec![&stripe()]));
    }

    #[test]
    fn a_new_tenant_source_leaves_no_previous_ids() {
        let next = retire(&stripe(), 7).succeeded_by(&StoreIdentity::new("u"), VALID_FOR);
        assert_eq!(next.previous, []);
    }
}
