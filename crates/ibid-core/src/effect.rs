//! Effects: outbox rows, each an external call that has to be made. `machine` decides their states.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::change::InstantChange;
use crate::machine::{ClaimReason, Effect, EffectState, InDoubtRule};
use crate::record::{Nonce, Version};
use crate::scope::RecordId;
use crate::time::Timestamp;

/// A call to be made once the transaction that asks for it has committed.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEffect {
    /// Name within the record. A second effect of that name in the same generation is refused.
    pub name: String,
    /// Kind of the effect, which selects its handler.
    pub kind: String,
    /// Input of the handler.
    pub payload: Bytes,
    /// Aggregate whose effects run one after another, in the order in which they were enqueued.
    pub aggregate: Option<String>,
    /// Rules for running it, stored with the effect.
    pub rules: EffectRules,
    /// `true` if this effect owes the record's final response.
    pub owes: bool,
    /// Time until the first try.
    pub delay: Duration,
    /// W3C `traceparent` of the request that caused it.
    pub trace: Option<String>,
}

impl NewEffect {
    /// Creates an effect under the default rules: its call is not repeatable unless the caller declares it so.
    pub fn new(name: impl Into<String>, kind: impl Into<String>, payload: impl Into<Bytes>) -> NewEffect {
        NewEffect {
            name: name.into(),
            kind: kind.into(),
            payload: payload.into(),
            aggregate: None,
            rules: EffectRules::default(),
            owes: false,
            delay: Duration::ZERO,
            trace: None,
        }
    }

    /// An effect of one kind with `payload` as JSON, named like its kind. A record with several effects of one kind
    /// [names](NewEffect::named) them.
    ///
    /// # Errors
    ///
    /// If JSON can't express the payload.
    pub fn json(kind: &str, payload: &impl Serialize) -> Result<NewEffect, serde_json::Error> {
        Ok(NewEffect::new(kind, kind, serde_json::to_vec(payload)?))
    }

    /// Sets the effect's name within the record.
    pub fn named(mut self, name: impl Into<String>) -> NewEffect {
        self.name = name.into();
        self
    }

    /// Declares that the provider deduplicates by our key, so an uncertain call is repeated within the key window.
    pub fn repeatable(mut self) -> NewEffect {
        self.rules.safety = Safety::Repeatable;
        self
    }

    /// Declares that the handler can ask whether a call was made. An uncertain call is verified after the `settle`
    /// pause.
    pub fn verified(mut self) -> NewEffect {
        self.rules.safety = Safety::Verified;
        self
    }

    /// Runs the effect in order with the others of this aggregate.
    pub fn ordered_by(mut self, aggregate: impl Into<String>) -> NewEffect {
        self.aggregate = Some(aggregate.into());
        self
    }

    /// Makes the result of this effect the record's final response.
    pub fn owing(mut self) -> NewEffect {
        self.owes = true;
        self
    }

    /// Replaces the rules for running it.
    pub fn rules(mut self, rules: EffectRules) -> NewEffect {
        self.rules = rules;
        self
    }

    /// Checks that every store can keep the effect's name, kind and aggregate.
    ///
    /// They are refused, not cut: two names that are cut to one would be one effect.
    ///
    /// # Errors
    ///
    /// Fails if one of them is longer than [`NAME_BYTES_MAX`] or contains a NUL.
    pub fn check(&self) -> Result<(), InvalidEffectError> {
        let texts =
            [("name", Some(&self.name)), ("kind", Some(&self.kind)), ("aggregate", self.aggregate.as_ref())];
        let is_invalid = |text: &String| text.len() > NAME_BYTES_MAX || text.contains('\0');
        match texts.into_iter().find(|(_, text)| text.is_some_and(is_invalid)) {
            Some((field, _)) => Err(InvalidEffectError { field }),
            None => Ok(()),
        }
    }
}

/// Error for an effect whose name, kind or aggregate can't be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the `{field}` of an effect may have at most {NAME_BYTES_MAX} bytes and no NUL")]
#[non_exhaustive]
pub struct InvalidEffectError {
    /// The text that can't be stored: `name`, `kind` or `aggregate`.
    pub field: &'static str,
}

/// Returns a text of a handler or a provider as stores keep it: without NUL, and cut to about `bytes_max` bytes.
///
/// PostgreSQL stores no NUL and indexes no text above 2.7 kB. If such a text reached a statement, the result of a call could
/// not be written, and a call that was certainly not made would end as `unknown`.
pub fn stored_text(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max && !text.contains('\0') {
        return Cow::Borrowed(text);
    }
    let mut clean = text.replace('\0', "");
    if clean.len() > bytes_max {
        clean.truncate(clean.floor_char_boundary(bytes_max));
        clean.push('…');
    }
    Cow::Owned(clean)
}

/// Rules for running an effect, stored with it as JSON.
///
/// A field that is missing in a stored effect gets its default, and one that a newer version added is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct EffectRules {
    /// The way in which an uncertain call is made safe.
    pub safety: Safety,
    /// Number of claims before the effect becomes a dead letter.
    pub tries_max: u32,
    /// Lease of a claim, in ms. It is not renewed, so it must exceed the handler's timeout.
    pub lease_ms: u64,
    /// Time in ms for which a call may still be in flight after its worker was lost: `verify` asks no sooner.
    pub settle_ms: u64,
    /// Time for which the provider remembers our key, in ms from the first call.
    pub key_window_ms: u64,
}

impl Default for EffectRules {
    fn default() -> Self {
        EffectRules {
            safety: Safety::Once,
            // With doubling pauses up to five minutes, this covers most of an hour of outage.
            tries_max: 16,
            // Twice the worker's default timeout.
            lease_ms: 60_000,
            // Twice the worker's default timeout: a call that was sent late may take all of it.
            settle_ms: 60_000,
            key_window_ms: KEY_WINDOW_MS,
        }
    }
}

/// The way in which an uncertain call is made safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Safety {
    /// Nothing makes it safe: the effect becomes `unknown`, a dead letter.
    Once,
    /// The provider deduplicates by our key.
    Repeatable,
    /// The handler can ask whether it was made.
    Verified,
    /// Both: the call is repeated within the key window and verified after it.
    RepeatableAndVerified,
}

impl EffectRules {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut EffectRules)) -> EffectRules {
        change(&mut self);
        self
    }

    /// Returns the rules as stores keep them.
    pub fn to_json(&self) -> String {
        // Numbers and names have a JSON form.
        serde_json::to_string(self).expect("rules are JSON")
    }

    /// Reads stored rules. Returns `None` if the text is damaged, or names a way that this version does not know.
    pub fn from_json(json: &str) -> Option<EffectRules> {
        serde_json::from_str(json).ok()
    }

    /// Returns the lease of a claim.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// An effect as a store returns it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEffect {
    /// Sequence number in the outbox.
    pub seq: i64,
    /// Record that caused it, which may be gone.
    pub record: RecordId,
    /// Generation of that record.
    pub birth: Nonce,
    /// Tenant of that record.
    pub tenant: String,
    /// Name within the record.
    pub name: String,
    /// Kind of the effect, which selects its handler.
    pub kind: String,
    /// Version of the last write; it fences later writers.
    pub version: Version,
    /// State of the effect.
    pub state: EffectState,
    /// Number of claims and verifications since it was enqueued, or since an operator retried it.
    pub tries: u32,
    /// Earliest time of the next try, end of the lease or next verification, depending on the state.
    pub due_at: Option<Timestamp>,
    /// Instant at which it was enqueued.
    pub created_at: Timestamp,
    /// Instant just before the first call.
    pub called_at: Option<Timestamp>,
    /// Instant at which its last call ended or its worker was given up, while the outcome is unknown; otherwise `None`.
    pub ended_at: Option<Timestamp>,
    /// Instant at which it was done or discarded.
    pub done_at: Option<Timestamp>,
    /// Aggregate within which effects run in order.
    pub aggregate: Option<String>,
    /// Key that is sent to the provider, the same for every try.
    pub downstream_key: String,
    /// Rules for running it.
    pub rules: EffectRules,
    /// `true` if it owes the record's response.
    pub owes: bool,
    /// `true` if it is a notice to an operator and not a call. The reaper keeps its row, so that its name stays taken.
    pub is_letter: bool,
    /// W3C `traceparent` of the request that caused it.
    pub trace: Option<String>,
    /// Input of the handler. Empty once the reaper has dropped it, together with the record's response.
    pub payload: Bytes,
    /// Result of the call. While its end could not be written, also the response that it owes. `None` once the reaper has
    /// dropped it, together with the record's response.
    pub result: Option<Bytes>,
    /// The provider's own id of the result.
    pub provider_id: Option<String>,
    /// Reason why the last try failed.
    pub last_error: Option<String>,
    /// The store's clock at the read.
    pub now: Timestamp,
}

impl StoredEffect {
    /// Returns the part of the effect that the machine decides on.
    pub fn to_decide(&self) -> Effect {
        Effect {
            state: self.state,
            tries: self.tries,
            tries_max: self.rules.tries_max,
            doubt: match self.rules.safety {
                Safety::Repeatable | Safety::RepeatableAndVerified if !self.is_past_key_window() => {
                    InDoubtRule::Repeat
                }
                Safety::Verified | Safety::RepeatableAndVerified => {
                    InDoubtRule::Verify { settle: Duration::from_millis(self.rules.settle_ms) }
                }
                Safety::Once | Safety::Repeatable => InDoubtRule::Stop,
            },
        }
    }

    /// Returns whether the provider may have forgotten our key. Then a call under it may be executed a second time.
    pub fn is_past_key_window(&self) -> bool {
        let window = Duration::from_millis(self.rules.key_window_ms);
        self.called_at.is_some_and(|at| at.after(window) <= self.now)
    }

    /// Returns whether a call now may be executed a second time.
    ///
    /// Only an effect that is repeated because the provider deduplicates is in that danger. Any other is queued again
    /// only once it is certain that no call was made.
    pub fn may_be_second(&self) -> bool {
        let repeats = matches!(self.rules.safety, Safety::Repeatable | Safety::RepeatableAndVerified);
        repeats && self.is_past_key_window()
    }
}

/// A write to one effect, at the version that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct EffectChange {
    /// Sequence number of the effect.
    pub seq: i64,
    /// Version that must be stored now for the write to commit.
    pub expect: Version,
    /// Nonce of the new version.
    pub nonce: Nonce,
    /// State after the write.
    pub state: EffectState,
    /// Number of claims after the write.
    pub tries: u32,
    /// Time until it is due in that state.
    pub due_in: Option<Duration>,
    /// Change to the instant of the first call. It is cleared if no call was made, so that the next call is the first.
    pub called: InstantChange,
    /// Change to the instant at which its last call ended with an unknown outcome.
    pub ended: InstantChange,
    /// Result of the call; `None` keeps the stored one.
    pub result: Option<Bytes>,
    /// The provider's own id; `None` keeps the stored one.
    pub provider_id: Option<String>,
    /// Reason of the failure; `None` keeps the stored one.
    pub last_error: Option<String>,
}

impl EffectChange {
    /// Returns a write that changes only the version of `effect`: the state, the tries and the time left until it is
    /// due stay.
    pub fn touch(effect: &StoredEffect, nonce: Nonce) -> EffectChange {
        EffectChange {
            seq: effect.seq,
            expect: effect.version,
            nonce,
            state: effect.state,
            tries: effect.tries,
            due_in: effect.due_at.map(|due_at| due_at.since(effect.now)),
            called: InstantChange::Keep,
            ended: InstantChange::Keep,
            result: None,
            provider_id: None,
            last_error: None,
        }
    }
}

/// A claim of due effects by a worker, each for the lease in its rules.
#[derive(Clone, Debug)]
pub struct EffectClaim {
    /// Sequence numbers of the effects.
    pub seqs: Vec<i64>,
    /// Reason of the claim. The first claim that counts as a try sets the instant of the first call, which is durable
    /// before the first byte is sent.
    pub reason: ClaimReason,
    /// Nonce of this write, for each of them.
    pub nonce: Nonce,
}

/// Filter for a list of effects.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EffectFilter {
    /// Only effects in this state.
    pub state: Option<EffectState>,
    /// Only effects of this record.
    pub record: Option<RecordId>,
    /// Only dead letters: dead, or unknown and never due. It replaces the filter on the state.
    pub dead_letter: bool,
    /// Cursor: only effects after this sequence number.
    pub after: i64,
    /// Largest number of effects.
    pub limit: u32,
}

impl EffectFilter {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut EffectFilter)) -> EffectFilter {
        change(&mut self);
        self
    }
}

impl Default for EffectFilter {
    fn default() -> Self {
        // A screenful or two; the cursor fetches the rest.
        EffectFilter { state: None, record: None, dead_letter: false, after: 0, limit: 100 }
    }
}

/// Returns the key that is sent to a provider for one phase or effect.
///
/// It is the same for every retry and recovery of one generation, differs in the next one, and does not depend on
/// secrets that rotate.
pub fn downstream_key(record: &RecordId, birth: Nonce, name: &str) -> String {
    let mut digest = Sha256::new();
    digest.update(b"ibid downstream key 1\0");
    digest.update(record.as_bytes());
    digest.update(birth.0.to_be_bytes());
    digest.update(name.as_bytes());
    // 128 bits distinguish more calls than will ever be made; hex satisfies every provider's rules for keys.
    format!("ibid-{}", crate::hex::encode(&digest.finalize()[..16]))
}

/// Returns whether a text may be a key made by [`downstream_key`]: a provider also reports calls that others make.
pub fn is_downstream_key(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
    text.strip_prefix("ibid-").is_some_and(|hex| hex.len() == 32 && hex.bytes().all(is_hex))
}

/// Time for which a provider is assumed to remember our key, unless configured otherwise: what payment providers
/// promise.
pub const KEY_WINDOW: Duration = Duration::from_millis(KEY_WINDOW_MS);

const KEY_WINDOW_MS: u64 = 24 * 3_600_000;

/// Codes of the states in which an effect may need an operator: `unknown` and `dead`.
pub const OPERATOR_STATE_CODES: [i64; 2] =
    [EffectState::NEED_OPERATOR[0] as i64, EffectState::NEED_OPERATOR[1] as i64];

/// Largest size of an effect's name, kind and aggregate, in bytes. They are parts of index entries, of which PostgreSQL
/// allows 2.7 kB; a name that a developer chose or an id of a resource fits.
pub const NAME_BYTES_MAX: usize = 512;

/// Largest size of a provider's id that is stored, in bytes. It is an index entry, like [`NAME_BYTES_MAX`].
pub const PROVIDER_ID_BYTES_MAX: usize = 512;

/// Bytes of a handler's error that are stored: a provider's message fits, a page of HTML does not.
pub const ERROR_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_texts_are_cut_and_have_no_nul() {
        assert!(matches!(stored_text("busy", 4), Cow::Borrowed("busy")));
        assert_eq!(stored_text("b\0usy\0", 4), "busy");
        assert_eq!(stored_text("aäöü", 4), "aä…", "cut between characters");
        assert_eq!(stored_text(&"\0".repeat(5000), 4), "");
    }

    #[test]
    fn an_effect_that_no_store_can_keep_is_refused() {
        let effect = |name: &str| NewEffect::new(name, "charge", "");
        assert_eq!(effect(&"n".repeat(NAME_BYTES_MAX)).check(), Ok(()));
        assert_eq!(effect(&"n".repeat(NAME_BYTES_MAX + 1)).check().unwrap_err().field, "name");
        assert_eq!(NewEffect::new("n", "a\0", "").check().unwrap_err().field, "kind");
        assert_eq!(effect("n").ordered_by("a\0").check().unwrap_err().field, "aggregate");
    }

    #[test]
    fn rules_are_stored_as_json_that_people_read() {
        let rules = EffectRules { safety: Safety::RepeatableAndVerified, ..EffectRules::default() };
        let json = r#"{"safety":"repeatable_and_verified","tries_max":16,"lease_ms":60000,"settle_ms":60000,"key_window_ms":86400000}"#;
        assert_eq!(rules.to_json(), json);
        assert_eq!(EffectRules::from_json(json), Some(rules));
        // A newer version added a field, an older one wrote one less.
        assert_eq!(EffectRules::from_json(r#"{"safety":"once","jitter":1}"#), Some(EffectRules::default()));
        assert_eq!(EffectRules::from_json(r#"{"safety":"prayed"}"#), None);
    }

    #[test]
    fn a_downstream_key_is_recognised() {
        let ours = downstream_key(&RecordId::from_bytes([7; RecordId::LEN]), Nonce(1), "charge");
        assert!(is_downstream_key(&ours), "{ours}");
        for other in ["", "ibid-", &ours[..36], &format!("{ours}0"), &ours.to_uppercase(), &ours[5..]] {
            assert!(!is_downstream_key(other), "{other}");
        }
    }
}
