//! The rules of one route.
//!
//! A record keeps the policy that it was begun with, so a changed configuration applies to later records only.

mod check;
mod identity;
mod micros;
mod status_class;

use std::time::Duration;

use minicbor::{Decode, Encode};

use crate::cbor_default::{optional_micros, true_by_default};
use crate::fingerprint::Recipe;
use crate::forward_key::ForwardKey;
use crate::key_source::KeyFrom;
use crate::proof::{Hop, NotExecutedWhen};
use crate::repeatability::REQUEST_ID;
use crate::scope::ScopeRule;

pub use check::PolicyError;
pub use identity::{IdentityFieldError, IdentityRules};
pub use status_class::{FREE_ON, ResponseClass};

/// The rules of one route. [`Policy::default`] holds the defaults of the contract, section 5.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[non_exhaustive]
pub struct Policy {
    /// Wire dialect of the responses to clients.
    #[n(0)]
    pub profile: Profile,
    /// Rule for requests without a key.
    #[n(1)]
    pub key: KeyRule,
    /// Accept only quoted keys (RFC 9651 String).
    #[n(2)]
    pub strict_key: bool,
    /// Reach of one key: the operation or the whole tenant.
    #[n(3)]
    pub scope: ScopeRule,
    /// Owner of a key within the tenant.
    #[n(24)]
    pub bind: BindRule,
    /// Treatment of a duplicate while the first request runs.
    #[n(4)]
    pub in_flight: InFlight,
    /// Time for which a duplicate waits before it gets 409. Zero: not at all.
    #[cbor(n(5), with = "micros")]
    pub wait: Duration,
    /// Rule for when the response comes: when the work is done, or at once with a URL to poll.
    #[n(6)]
    pub answer: AnswerRule,
    /// Time for which an attempt may run without renewing its right to; renewed while it lives.
    #[cbor(n(7), with = "micros")]
    pub lease: Duration,
    /// Longest run. Renewal ends here, so that a hung handler lapses.
    #[cbor(n(8), with = "micros")]
    pub max_run: Duration,
    /// Time for which a response is replayed, from completion.
    #[cbor(n(9), with = "micros")]
    pub retention: Duration,
    /// Time past the retention for which the row stays, for refusals and audit.
    #[cbor(n(10), with = "micros")]
    pub tombstone: Duration,
    /// Treatment of a request whose record is past its retention.
    #[n(11)]
    pub after_expiry: AfterExpiry,
    /// Treatment of a record whose lease lapsed.
    #[n(12)]
    pub on_lapse: OnLapse,
    /// Treatment of a record whose response is 500, or whose handler panicked.
    ///
    /// It applies to no other status: 408 and the other 5xx may come from a proxy while the first run is still working.
    #[n(13)]
    pub on_server_error: OnServerError,
    /// Number of runs after which a request that keeps lapsing (a poison request) is not run again, and an accepted
    /// request that was never executed is given up.
    #[n(14)]
    pub max_attempts: u32,
    /// Time for which an accepted request may wait to be claimed.
    #[cbor(n(15), with = "micros")]
    pub pending_deadline: Duration,
    /// Time that the handler or upstream may take before its result counts as uncertain.
    #[cbor(n(16), with = "micros")]
    pub upstream_timeout: Duration,
    /// Time after `upstream_timeout` in which a late response is still read, so that it settles the record itself.
    #[cbor(n(17), with = "micros")]
    pub linger: Duration,
    /// Largest request body that is read, in bytes.
    #[n(18)]
    pub max_request_body: u64,
    /// Largest response body that is stored, in bytes.
    #[n(19)]
    pub max_response_body: u64,
    /// Statuses that release the key, besides those of [`FREE_ON`].
    #[n(20)]
    pub free_on: Vec<u16>,
    /// Statuses of [`FREE_ON`], or 409 and 423, that are final on this route.
    #[n(25)]
    #[cbor(default)]
    pub store_on: Vec<u16>,
    /// Fields of a hop that prove that nothing was executed.
    #[n(27)]
    #[cbor(default)]
    pub not_executed_when: Vec<NotExecutedWhen>,
    /// Proxy that requests are forwarded to; it selects a set of measured rules.
    #[n(28)]
    pub behind: Option<Hop>,
    /// Time for which an unknown outcome that nothing can settle is kept, from when it became a dead letter. `None`:
    /// forever.
    #[cbor(n(26), with = "micros::optional")]
    #[cbor(default)]
    pub unknown_retention: Option<Duration>,
    /// Pattern of the route, as metrics name it. `None`: `*`.
    #[n(29)]
    pub route: Option<String>,
    /// Parts of the request that the fingerprint covers.
    #[n(21)]
    pub recipe: Recipe,
    /// Version of the API's own response shape, stored with the response.
    #[n(22)]
    pub response_version: u32,
    /// Rule for looking up the outcome of an `unknown` record. `None`: it is a dead letter at once.
    #[n(23)]
    pub reconcile: Option<Reconcile>,
    /// Places where a request may carry its key.
    #[n(32)]
    pub key_from: KeyFrom,
    /// Largest age of a request under a new key, since it was first sent. `None`: not checked, or in profile
    /// `repeatability` the retention.
    #[cbor(n(35), with = "optional_micros", has_nil)]
    pub max_request_age: Option<Duration>,
    /// `false` if the operation cannot be repeated. Then profile `repeatability` refuses its field with 501, and the
    /// others pass the request unguarded.
    #[cbor(n(36), with = "true_by_default", has_nil)]
    pub repeatable: bool,
    /// Header field that says when a request was first sent, in lower case. `None`: `repeatability-first-sent`.
    #[n(37)]
    pub first_sent: Option<String>,
    /// Rule by which a gateway passes the key on to the upstream.
    #[cbor(n(33), default)]
    pub forward_key: ForwardKey,
    /// Response fields that are not replayed, in lower case, besides those that never are.
    #[cbor(n(31), default)]
    pub not_replayed: Vec<String>,
    /// Reading of a request's path for matching and scope.
    #[cbor(n(30), default)]
    pub path: PathRule,
    /// Every response below 500 is a stream, whatever its media type: it is passed on as it arrives, and not retained.
    #[cbor(n(34), default)]
    pub stream: bool,
}

/// Reading of a request's path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
#[expect(clippy::exhaustive_enums, reason = "the layer has to obey every rule")]
pub enum PathRule {
    /// Normalized, and refused where servers read it differently ([`path`](crate::path)).
    #[default]
    #[n(0)]
    Strict,
    /// As it was sent: the operator vouches that the upstream reads it the same way.
    #[n(1)]
    AsSent,
}

/// A published wire dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
#[non_exhaustive]
pub enum Profile {
    /// The IETF draft with problem details.
    #[n(0)]
    Ietf,
    /// The dialect of Stripe's v1 API.
    #[n(1)]
    Stripe,
    /// OASIS Repeatable Requests 1.0, which Azure's clients speak.
    #[n(2)]
    Repeatability,
}

impl Profile {
    /// Returns the name of the profile in labels and configuration.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Ietf => "ietf",
            Profile::Stripe => "stripe",
            Profile::Repeatability => "repeatability",
        }
    }
}

/// The policy that a profile begins with.
impl From<Profile> for Policy {
    fn from(profile: Profile) -> Policy {
        match profile {
            Profile::Ietf => Policy::default(),
            Profile::Stripe => Policy::stripe(),
            Profile::Repeatability => Policy::repeatability(),
        }
    }
}

/// Rule for requests without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
#[expect(clippy::exhaustive_enums, reason = "the layer has to obey every rule")]
pub enum KeyRule {
    /// A request without a key is refused.
    #[n(0)]
    Required,
    /// A request without a key runs unguarded.
    #[n(1)]
    Optional,
}

/// Owner of a key within the tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
#[expect(clippy::exhaustive_enums, reason = "the layer has to obey every rule")]
pub enum BindRule {
    /// The whole tenant shares its keys.
    #[n(0)]
    Tenant,
    /// The principal that sent it: the same key of another principal is a separate record.
    #[n(1)]
    Principal,
}

/// Treatment of a duplicate while the first request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
#[expect(clippy::exhaustive_enums, reason = "the layer has to obey every rule")]
pub enum InFlight {
    /// The duplicate waits for up to `wait`, then gets the response or is refused.
    #[n(0)]
    Wait,
    /// It gets 409 at once.
    #[n(1)]
    Conflict,
    /// It gets 202 and a URL to poll.
    #[n(2)]
    Accepted,
}

/// Rule for when the response comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
#[expect(clippy::exhaustive_enums, reason = "the layer has to obey every rule")]
pub enum AnswerRule {
    /// The handler's response is sent when it is done.
    #[n(0)]
    Sync,
    /// 202 is sent now; the response can be fetched later.
    #[n(1)]
    Async,
    /// As the client prefers (`Prefer: respond-async`).
    #[n(2)]
    Prefer,
}

/// Treatment of a request whose record is past its retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
#[non_exhaustive]
pub enum AfterExpiry {
    /// It runs as a new request.
    #[n(0)]
    Execute,
    /// It gets 410, for as long as the tombstone is kept.
    #[n(1)]
    Refuse,
}

/// Treatment of a record whose lease lapsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
#[non_exhaustive]
pub enum OnLapse {
    /// The outcome is unknown; only a late response, a reconciler, evidence or an operator settles it.
    #[n(0)]
    Unknown,
    /// The request runs again: the operator vouches that the takeover fences every effect.
    #[n(1)]
    Retry,
    /// The request resumes after the last recovery point.
    #[n(2)]
    Resume,
    /// A 500 is stored as the final response, and the record becomes a dead letter.
    #[n(3)]
    Fail,
}

/// Treatment of a record whose response is 500, or whose handler panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
#[non_exhaustive]
pub enum OnServerError {
    /// The outcome is unknown.
    #[n(0)]
    Unknown,
    /// The key is released: the operator vouches that the upstream rolled back.
    #[n(1)]
    Retry,
    /// The error is stored as the final response.
    #[n(2)]
    Store,
}

/// Rule for looking up the outcome of an `unknown` record.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[non_exhaustive]
pub struct Reconcile {
    /// Time between two lookups that both must say "not executed" before it counts.
    #[cbor(n(0), with = "micros")]
    pub settle: Duration,
    /// Number of lookups before the record becomes a dead letter.
    #[n(1)]
    pub attempts: u32,
    /// Pattern of the route, as metrics name it. `None`: `*`.
    #[n(2)]
    pub route: Option<String>,
    /// Lookup request of a gateway. `None`: the lookup that the application registered.
    #[n(3)]
    pub question: Option<Question>,
}

/// Lookup request that a gateway sends to its upstream. Texts may hold `{key}`, `{tenant}` and the names in the route's
/// pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Question {
    /// Path and query to GET.
    #[n(0)]
    pub path: String,
    /// Header lines of the lookup request.
    #[n(1)]
    pub headers: Vec<(String, String)>,
    /// Statuses that mean "executed"; the response becomes the stored one.
    #[n(2)]
    pub executed: Vec<u16>,
    /// Statuses that mean "not executed".
    #[n(3)]
    pub not_executed: Vec<u16>,
    /// Status under which the response is stored. `None`: its own.
    #[n(4)]
    pub status: Option<u16>,
}

impl Reconcile {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Reconcile)) -> Reconcile {
        change(&mut self);
        self
    }

    /// A rule that uses the lookup that the application registered.
    pub fn new(settle: Duration, attempts: u32) -> Reconcile {
        Reconcile { settle, attempts, route: None, question: None }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            profile: Profile::Ietf,
            key: KeyRule::Required,
            strict_key: false,
            scope: ScopeRule::Operation,
            bind: BindRule::Tenant,
            in_flight: InFlight::Wait,
            wait: Duration::from_secs(5),
            answer: AnswerRule::Sync,
            lease: Duration::from_secs(60),
            max_run: Duration::from_secs(15 * 60),
            retention: Duration::from_secs(24 * 3600),
            tombstone: Duration::ZERO,
            after_expiry: AfterExpiry::Execute,
            on_lapse: OnLapse::Unknown,
            on_server_error: OnServerError::Unknown,
            max_attempts: 10,
            pending_deadline: Duration::from_secs(3600),
            upstream_timeout: Duration::from_secs(30),
            linger: Duration::from_secs(30),
            max_request_body: 1 << 20,
            max_response_body: 1 << 20,
            free_on: Vec::new(),
            store_on: Vec::new(),
            not_executed_when: Vec::new(),
            behind: None,
            unknown_retention: None,
            route: None,
            recipe: Recipe::default(),
            response_version: 1,
            reconcile: None,
            key_from: KeyFrom::default(),
            max_request_age: None,
            repeatable: true,
            first_sent: None,
            forward_key: ForwardKey::default(),
            not_replayed: Vec::new(),
            path: PathRule::Strict,
            stream: false,
        }
    }
}

impl Policy {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Policy)) -> Policy {
        change(&mut self);
        self
    }

    /// Encodes the policy as stores keep it.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Writing into a `Vec` cannot fail.
        minicbor::to_vec(self).expect("a Vec takes every byte")
    }

    /// Decodes a stored policy; `None` if the bytes are not one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Policy> {
        minicbor::decode(bytes).ok()
    }
}

impl Policy {
    /// A policy for routes that move money: a month of replays, and a year in which an old key is refused, not run.
    pub fn payments() -> Policy {
        Policy {
            retention: 30 * DAY,
            tombstone: 360 * DAY,
            after_expiry: AfterExpiry::Refuse,
            ..Policy::default()
        }
    }

    /// A policy for handlers whose only effect is the transaction that also completes the record.
    ///
    /// A takeover fences that commit, so the request may simply run again after a lapse or a server error.
    pub fn one_transaction() -> Policy {
        Policy { on_lapse: OnLapse::Retry, on_server_error: OnServerError::Retry, ..Policy::default() }
    }

    /// A policy in Stripe's dialect, with the rules that its clients rely on: one key per account, errors replayed.
    pub fn stripe() -> Policy {
        Policy {
            profile: Profile::Stripe,
            scope: ScopeRule::Tenant,
            on_server_error: OnServerError::Store,
            ..Policy::default()
        }
    }

    /// A policy for OASIS Repeatable Requests: the key is in `Repeatability-Request-ID`, and is shared by all
    /// operations of a tenant.
    pub fn repeatability() -> Policy {
        Policy {
            profile: Profile::Repeatability,
            scope: ScopeRule::Tenant,
            key_from: KeyFrom::header(REQUEST_ID),
            ..Policy::default()
        }
    }

    /// Returns the policy that has this name in a configuration.
    pub fn preset(name: &str) -> Option<Policy> {
        PRESETS.iter().find(|(known, _)| *known == name).map(|(_, make)| make())
    }

    /// Returns the time after its begin at which an attempt is over: it delivers and reads nothing any more.
    pub fn over_in(&self) -> Duration {
        self.upstream_timeout + self.linger
    }
}

/// A name and the policy that it stands for.
pub type Preset = (&'static str, fn() -> Policy);

/// The presets by name, in the order of the documentation.
pub const PRESETS: [Preset; 4] = [
    ("payments", Policy::payments),
    ("one-transaction", Policy::one_transaction),
    ("stripe", Policy::stripe),
    ("repeatability", Policy::repeatability),
];

const DAY: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_and_every_preset_can_be_kept() {
        assert_eq!(Policy::default().check(), Ok(()));
        for (name, make) in PRESETS {
            assert_eq!(make().check(), Ok(()), "{name}");
            assert_eq!(Policy::preset(name), Some(make()));
        }
        assert_eq!(Policy::preset("paymnets"), None);
    }

    #[test]
    fn a_policy_survives_its_own_bytes() {
        let aged = Policy {
            max_request_age: Some(DAY),
            repeatable: false,
            first_sent: Some("x-first-sent".into()),
            ..Policy::repeatability()
        };
        for policy in [Policy::default(), Policy::payments(), Policy::stripe(), aged] {
            let bytes = minicbor::to_vec(&policy).unwrap();
            assert_eq!(minicbor::decode::<Policy>(&bytes).unwrap(), policy);
        }
        let question = Question {
            path: "/payments/{id}?key={key}".into(),
            headers: vec![("x-tenant-id".into(), "{tenant}".into())],
            executed: vec![200, 402],
            not_executed: vec![404],
            status: Some(201),
        };
        let route = Some("/payments/{id}".to_owned());
        let reconcile = Reconcile { route, question: Some(question), ..Reconcile::new(DAY, 3) };
        let key_from = KeyFrom::parse(["paypal", "body:/k"]).unwrap();
        let rule = NotExecutedWhen { status: vec![503], header: "x-a".into(), values: vec!["b".into()] };
        let policy = Policy {
            reconcile: Some(reconcile),
            store_on: vec![429],
            not_executed_when: vec![rule],
            behind: Some(Hop::Envoy),
            unknown_retention: Some(90 * DAY),
            route: Some("/payments/{id}".into()),
            key_from,
            ..Policy::default()
        };
        assert_eq!(Policy::from_bytes(&policy.to_bytes()), Some(policy));
    }

    #[test]
    fn a_policy_from_before_questions_were_kept_can_still_be_read() {
        // Two fields, as earlier releases wrote them.
        let old = minicbor::to_vec((60_000_000u64, 7u32)).unwrap();
        let read: Reconcile = minicbor::decode(&old).unwrap();
        assert_eq!(read, Reconcile::new(Duration::from_secs(60), 7));
    }
}
