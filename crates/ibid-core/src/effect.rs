//! Effects: outbox rows, each a call to the outside still to be made. What becomes of one is decided in `machine`.

use std::time::Duration;

use bytes::Bytes;
use minicbor::{Decode, Encode};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::change::InstantChange;
use crate::machine::{ClaimReason, Doubt, Effect, EffectState};
use crate::record::{Nonce, Version};
use crate::scope::RecordId;
use crate::time::Timestamp;

/// A call to be made once the transaction that asks for it has committed.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEffect {
    /// Its name within the Record: a second one of that name in the same generation is refused.
    pub name: String,
    /// Which handler carries it out.
    pub kind: String,
    /// What the handler is given.
    pub payload: Bytes,
    /// Effects of one aggregate are carried out one after another, in the order of their enqueuing.
    pub aggregate: Option<String>,
    /// How it is carried out; travels with it.
    pub rules: EffectRules,
    /// Whether the Record's final answer is owed by it.
    pub owes: bool,
    /// From now to the first try.
    pub delay: Duration,
    /// The W3C `traceparent` of the request that caused it.
    pub trace: Option<String>,
}

impl NewEffect {
    /// An Effect of one kind under its usual rules: not repeatable until somebody says that it is.
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

    /// Under this name within the record.
    pub fn named(mut self, name: impl Into<String>) -> NewEffect {
        self.name = name.into();
        self
    }

    /// The provider deduplicates by our key, so an uncertain call is made again within the key window.
    pub fn repeatable(mut self) -> NewEffect {
        self.rules.safety = Safety::Repeatable;
        self
    }

    /// The handler can ask whether a call was made; an uncertain one is asked about after the `settle` pause.
    pub fn verified(mut self) -> NewEffect {
        self.rules.safety = Safety::Verified;
        self
    }

    /// Kept in order with the others of this aggregate.
    pub fn ordered_by(mut self, aggregate: impl Into<String>) -> NewEffect {
        self.aggregate = Some(aggregate.into());
        self
    }

    /// The Record's final answer is what comes of it.
    pub fn owing(mut self) -> NewEffect {
        self.owes = true;
        self
    }

    /// Under other rules.
    pub fn rules(mut self, rules: EffectRules) -> NewEffect {
        self.rules = rules;
        self
    }
}

/// How an Effect is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct EffectRules {
    /// What makes an uncertain call safe.
    #[n(0)]
    pub safety: Safety,
    /// Claims before a person is asked.
    #[n(1)]
    pub tries_max: u32,
    /// How long a worker holds it, in ms; renewed by nobody, so it must exceed the handler's time-out.
    #[n(2)]
    pub lease_ms: u64,
    /// So long a call may still be under way after its worker was lost, in ms: `verify` asks no sooner.
    #[n(3)]
    pub settle_ms: u64,
    /// How long the provider remembers our key, in ms from the first call.
    #[n(4)]
    pub key_window_ms: u64,
}

impl Default for EffectRules {
    fn default() -> Self {
        EffectRules {
            safety: Safety::Once,
            // With doubling pauses up to five minutes: most of an hour of outage.
            tries_max: 16,
            // Twice the worker's default time-out.
            lease_ms: 60_000,
            // Twice the worker's default time-out: a call that was sent late may take all of it.
            settle_ms: 60_000,
            key_window_ms: KEY_WINDOW_MS,
        }
    }
}

/// What makes an uncertain call safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Safety {
    /// Nothing: then it is `unknown`, and a person's.
    #[n(0)]
    Once,
    /// The provider deduplicates by our key.
    #[n(1)]
    Repeatable,
    /// The handler can ask whether it was made.
    #[n(2)]
    Verified,
    /// Both: repeated within the key window, asked about after it.
    #[n(3)]
    RepeatableAndVerified,
}

impl EffectRules {
    /// The bytes that a store keeps.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Writing into a Vec has no way to fail.
        minicbor::to_vec(self).expect("a Vec takes every byte")
    }

    /// The rules in these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<EffectRules> {
        minicbor::decode(bytes).ok()
    }

    /// How long a worker holds it.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// An Effect as a store holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEffect {
    /// Its place in the outbox.
    pub seq: i64,
    /// The Record that asked for it, which may be gone.
    pub record: RecordId,
    /// That Record's generation.
    pub birth: Nonce,
    /// Whose it is.
    pub tenant: String,
    /// Its name within the Record.
    pub name: String,
    /// Which handler carries it out.
    pub kind: String,
    /// The last write: the fence.
    pub version: Version,
    /// Where it stands.
    pub state: EffectState,
    /// How often it was claimed or asked about since it was enqueued, or since an operator wanted it made.
    pub tries: u32,
    /// Not before, lease end, or next verification, by state.
    pub due_at: Option<Timestamp>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When the first call was about to be made.
    pub called_at: Option<Timestamp>,
    /// When its last call was over, or its worker given up, without anybody knowing the outcome; none if it is known.
    pub ended_at: Option<Timestamp>,
    /// When it was done or discarded.
    pub done_at: Option<Timestamp>,
    /// What it is kept in order with.
    pub aggregate: Option<String>,
    /// The key that the provider is given; the same over every try.
    pub downstream_key: String,
    /// How it is carried out.
    pub rules: EffectRules,
    /// Whether it owes the Record's answer.
    pub owes: bool,
    /// The trace of the request that caused it.
    pub trace: Option<String>,
    /// What the handler is given.
    pub payload: Bytes,
    /// What came of it. While its end could not be written, with the answer that it owes.
    pub result: Option<Bytes>,
    /// The provider's own id of what was done.
    pub provider_id: Option<String>,
    /// Why the last try did not do it.
    pub last_error: Option<String>,
    /// The store's clock when it was read.
    pub now: Timestamp,
}

impl StoredEffect {
    /// What the machine must know of it.
    pub fn to_decide(&self) -> Effect {
        Effect {
            state: self.state,
            tries: self.tries,
            tries_max: self.rules.tries_max,
            doubt: match self.rules.safety {
                Safety::Repeatable | Safety::RepeatableAndVerified if !self.is_past_key_window() => {
                    Doubt::Repeat
                }
                Safety::Verified | Safety::RepeatableAndVerified => {
                    Doubt::Verify { settle: Duration::from_millis(self.rules.settle_ms) }
                }
                Safety::Once | Safety::Repeatable => Doubt::Stop,
            },
        }
    }

    /// Whether the provider may have forgotten our key: then a call under it may be a second one.
    pub fn is_past_key_window(&self) -> bool {
        let window = Duration::from_millis(self.rules.key_window_ms);
        self.called_at.is_some_and(|at| at.after(window) <= self.now)
    }

    /// Whether calling now may do it a second time. Only what is repeated on the strength of the provider's memory is
    /// in that danger: anything else is queued again only once it is certain that no call was made.
    pub fn may_be_second(&self) -> bool {
        let repeats = matches!(self.rules.safety, Safety::Repeatable | Safety::RepeatableAndVerified);
        repeats && self.is_past_key_window()
    }
}

/// A write to one Effect, at the Version that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct EffectChange {
    /// Which.
    pub seq: i64,
    /// What must be stored now for it to count.
    pub expect: Version,
    /// Becomes the nonce of the new Version.
    pub nonce: Nonce,
    /// Where it will stand.
    pub state: EffectState,
    /// How often it was claimed.
    pub tries: u32,
    /// From now to when it is due there.
    pub due_in: Option<Duration>,
    /// What happens to the instant of the first call: it goes when no call was made, so that the next is the first.
    pub called: InstantChange,
    /// What happens to the instant at which its last call was over with nobody knowing the outcome.
    pub ended: InstantChange,
    /// What came of it; none leaves what is kept.
    pub result: Option<Bytes>,
    /// The provider's own id; none leaves what is kept.
    pub provider_id: Option<String>,
    /// Why it was not done; none leaves what is kept.
    pub last_error: Option<String>,
}

impl EffectChange {
    /// A write that changes only the version of `effect`: state and tries stay, and what is left until it is due.
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

/// The due effects that a worker claims, each for the lease in its rules.
#[derive(Clone, Debug)]
pub struct EffectClaim {
    /// Only of these kinds.
    pub kinds: Vec<String>,
    /// What they are claimed for. The first claim that counts as a try sets the instant of the first call: it is
    /// durable before the first outside byte.
    pub reason: ClaimReason,
    /// Nonce of this write, for each of them.
    pub nonce: Nonce,
    /// How many at most.
    pub limit: u32,
}

/// Which Effects to list.
#[derive(Clone, Debug)]
pub struct EffectFilter {
    /// Only in this state.
    pub state: Option<EffectState>,
    /// Only this Record's.
    pub record: Option<RecordId>,
    /// Only those that a person must look at: dead, or unknown and never due. It stands instead of the state.
    pub dead_letter: bool,
    /// Only after this place: the cursor.
    pub after: i64,
    /// How many at most.
    pub limit: u32,
}

impl Default for EffectFilter {
    fn default() -> Self {
        // A screenful or two; the cursor gets the rest.
        EffectFilter { state: None, record: None, dead_letter: false, after: 0, limit: 100 }
    }
}

/// The key that a provider is given for one Phase or Effect: the same over every retry and recovery of one generation,
/// another for the next, and independent of secrets that rotate.
pub fn downstream_key(record: &RecordId, birth: Nonce, name: &str) -> String {
    let mut digest = Sha256::new();
    digest.update(b"ibid downstream key 1\0");
    digest.update(record.as_bytes());
    digest.update(birth.0.to_be_bytes());
    digest.update(name.as_bytes());
    // 128 bits tell apart more calls than will ever be made; hex passes every provider's rules for keys.
    digest.finalize()[..16].iter().fold(String::from("ibid-"), |key, byte| key + &format!("{byte:02x}"))
}

/// Whether a text may be a key that [`downstream_key`] made: a provider tells of calls that others make, too.
pub fn is_downstream_key(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
    text.strip_prefix("ibid-").is_some_and(|hex| hex.len() == 32 && hex.bytes().all(is_hex))
}

/// How long a provider is taken to remember our key, unless somebody says otherwise: what payment providers promise.
pub const KEY_WINDOW: Duration = Duration::from_millis(KEY_WINDOW_MS);

const KEY_WINDOW_MS: u64 = 24 * 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_ours_is_told_from_others() {
        let ours = downstream_key(&RecordId::from_bytes([7; 32]), Nonce(1), "charge");
        assert!(is_downstream_key(&ours), "{ours}");
        for other in ["", "ibid-", &ours[..36], &format!("{ours}0"), &ours.to_uppercase(), &ours[5..]] {
            assert!(!is_downstream_key(other), "{other}");
        }
    }
}
