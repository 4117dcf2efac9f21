//! The rules of one route. A Record keeps the Policy it was begun with, so a later configuration governs
//! later records only.

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

/// The rules of one route; [`Policy::default`] holds the defaults of the contract, section 5.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Policy {
    /// The wire dialect in which clients are answered.
    #[n(0)]
    pub profile: Profile,
    /// Whether a request without a key is refused.
    #[n(1)]
    pub key: KeyRule,
    /// Take quoted keys only (RFC 9651 String).
    #[n(2)]
    pub strict_key: bool,
    /// How far one key reaches.
    #[n(3)]
    pub scope: ScopeRule,
    /// To whom within the tenant a key belongs.
    #[n(24)]
    pub bind: BindRule,
    /// What a duplicate of a running request gets.
    #[n(4)]
    pub in_flight: InFlight,
    /// How long a duplicate is held before it gets 409. Zero: not at all.
    #[cbor(n(5), with = "micros")]
    pub wait: Duration,
    /// Answer when done, or at once with a place to look.
    #[n(6)]
    pub answer: AnswerRule,
    /// An Attempt's right to run; renewed while it lives.
    #[cbor(n(7), with = "micros")]
    pub lease: Duration,
    /// Where renewal ends, so that a hung handler lapses.
    #[cbor(n(8), with = "micros")]
    pub max_run: Duration,
    /// How long an answer is replayed, from completion.
    #[cbor(n(9), with = "micros")]
    pub retention: Duration,
    /// How long past retention the row stays, for refusal and audit.
    #[cbor(n(10), with = "micros")]
    pub tombstone: Duration,
    /// What a request gets whose record's retention is over.
    #[n(11)]
    pub after_expiry: AfterExpiry,
    /// What becomes of a record whose holder went silent.
    #[n(12)]
    pub on_lapse: OnLapse,
    /// What becomes of a record whose answer is 500, or whose handler panicked. It speaks of no other status: 408 and the
    /// other 5xx may come from a proxy while the first run is still at work.
    #[n(13)]
    pub on_server_error: OnServerError,
    /// After so many runs a lapsing request is not run again: it is poison. Nor is an accepted one that nobody took.
    #[n(14)]
    pub max_attempts: u32,
    /// How long an accepted request may wait to be claimed.
    #[cbor(n(15), with = "micros")]
    pub pending_deadline: Duration,
    /// How long the handler or upstream may take before its result counts as uncertain.
    #[cbor(n(16), with = "micros")]
    pub upstream_timeout: Duration,
    /// How long an answer is still read after that, so that a late one settles the record itself.
    #[cbor(n(17), with = "micros")]
    pub linger: Duration,
    /// Largest request body that is read.
    #[n(18)]
    pub max_request_body: u64,
    /// Largest response body that is kept.
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
    /// The proxy that requests are forwarded to: it stands for measured rules.
    #[n(28)]
    pub behind: Option<Hop>,
    /// How long an unknown outcome that nothing can settle is kept, from when it became a dead letter. None: for ever.
    #[cbor(n(26), with = "micros::optional")]
    #[cbor(default)]
    pub unknown_retention: Option<Duration>,
    /// The pattern of the route, as metrics name it. None: `*`.
    #[n(29)]
    pub route: Option<String>,
    /// What the fingerprint covers.
    #[n(21)]
    pub recipe: Recipe,
    /// The API's own response shape, kept with the answer.
    #[n(22)]
    pub response_version: u32,
    /// How an `unknown` record is settled by asking; none means that it is a dead letter at once.
    #[n(23)]
    pub reconcile: Option<Reconcile>,
    /// Where a request carries its key.
    #[n(32)]
    pub key_from: KeyFrom,
    /// How long ago a request under a new key may have been sent for the first time. None: not asked, or in profile
    /// `repeatability` the retention.
    #[cbor(n(35), with = "optional_micros", has_nil)]
    pub max_request_age: Option<Duration>,
    /// Whether the operation may be repeated. If not, profile `repeatability` refuses its field with 501, and the
    /// others pass the request unguarded.
    #[cbor(n(36), with = "true_by_default", has_nil)]
    pub repeatable: bool,
    /// The field that says when a request was first sent, in lower case. None: `repeatability-first-sent`.
    #[n(37)]
    pub first_sent: Option<String>,
    /// How a gateway passes the key on to the upstream.
    #[cbor(n(33), default)]
    pub forward_key: ForwardKey,
    /// Response fields that no retry gets, in lower case, besides those that never do.
    #[cbor(n(31), default)]
    pub not_replayed: Vec<String>,
    /// How a request's path is read for matching and scope.
    #[cbor(n(30), default)]
    pub path: PathRule,
    /// Every response below 500 is a stream, whatever its media type: passed on as it arrives, and not retained.
    #[cbor(n(34), default)]
    pub stream: bool,
}

/// How a request's path is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum PathRule {
    /// Normalized, and refused where servers read it differently ([`path`](crate::path)).
    #[default]
    #[n(0)]
    Strict,
    /// As it was sent: the operator's word that the upstream takes it as it is.
    #[n(1)]
    AsSent,
}

/// A published wire dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Profile {
    /// The IETF draft with problem details.
    #[n(0)]
    Ietf,
    /// Stripe's v1 surface.
    #[n(1)]
    Stripe,
    /// OASIS Repeatable Requests 1.0, which Azure's clients speak.
    #[n(2)]
    Repeatability,
}

/// Whether a key is demanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum KeyRule {
    /// A request without a key is refused.
    #[n(0)]
    Required,
    /// A request without a key runs unguarded.
    #[n(1)]
    Optional,
}

/// To whom within the tenant a key belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum BindRule {
    /// To all of the tenant.
    #[n(0)]
    Tenant,
    /// To the principal that sent it: another principal's same key is a record of its own.
    #[n(1)]
    Principal,
}

/// What a duplicate of a running request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum InFlight {
    /// It is held for `wait`, then answered or refused.
    #[n(0)]
    Wait,
    /// 409 at once.
    #[n(1)]
    Conflict,
    /// 202 and a place to look.
    #[n(2)]
    Accepted,
}

/// Answer when done, or at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum AnswerRule {
    /// The handler's answer is the response.
    #[n(0)]
    Sync,
    /// 202 now, the answer later.
    #[n(1)]
    Async,
    /// The one or the other, as the client prefers (`Prefer: respond-async`).
    #[n(2)]
    Prefer,
}

/// What a request gets whose record's retention is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum AfterExpiry {
    /// It runs as a new request.
    #[n(0)]
    Execute,
    /// 410, for as long as the tombstone stands.
    #[n(1)]
    Refuse,
}

/// What becomes of a record whose holder went silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum OnLapse {
    /// Nobody knows what happened; only reconciliation settles it.
    #[n(0)]
    Unknown,
    /// It runs again: the operator's word that the takeover fences every effect.
    #[n(1)]
    Retry,
    /// It runs on after the last recovery point.
    #[n(2)]
    Resume,
    /// It is answered with 500 for good, and a person is told.
    #[n(3)]
    Fail,
}

/// What becomes of a record whose answer proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum OnServerError {
    /// Nobody knows what happened.
    #[n(0)]
    Unknown,
    /// The key is free again: the operator's word that the upstream rolled back.
    #[n(1)]
    Retry,
    /// The error is the answer.
    #[n(2)]
    Store,
}

/// How an `unknown` record is settled by asking.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Reconcile {
    /// "Not executed" counts when seen twice, this far apart.
    #[cbor(n(0), with = "micros")]
    pub settle: Duration,
    /// Tries before a person is asked.
    #[n(1)]
    pub attempts: u32,
    /// The pattern of the route, as metrics name it. None: `*`.
    #[n(2)]
    pub route: Option<String>,
    /// How a gateway asks. None: by what the application registered.
    #[n(3)]
    pub question: Option<Question>,
}

/// How a gateway asks its upstream. Texts may hold `{key}`, `{tenant}` and the names in the route's pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Question {
    /// The path and query to GET.
    #[n(0)]
    pub path: String,
    /// Header lines of that request.
    #[n(1)]
    pub headers: Vec<(String, String)>,
    /// Answers that say it was executed: this one becomes the stored answer.
    #[n(2)]
    pub executed: Vec<u16>,
    /// Answers that say it was not.
    #[n(3)]
    pub not_executed: Vec<u16>,
    /// The status under which the answer is stored. None: its own.
    #[n(4)]
    pub status: Option<u16>,
}

impl Reconcile {
    /// By what the application registered.
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
    /// The bytes that a store keeps.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Writing into a Vec has no way to fail.
        minicbor::to_vec(self).expect("a Vec takes every byte")
    }

    /// The rules in these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Policy> {
        minicbor::decode(bytes).ok()
    }
}

impl Policy {
    /// For routes that move money: a month of replays, and a year in which an old key is refused, not run.
    pub fn payments() -> Policy {
        Policy {
            retention: 30 * DAY,
            tombstone: 360 * DAY,
            after_expiry: AfterExpiry::Refuse,
            ..Policy::default()
        }
    }

    /// For handlers whose only effect is the transaction that also completes the record: a takeover fences that
    /// commit, so a silent holder or a server error may simply be run again.
    pub fn one_transaction() -> Policy {
        Policy { on_lapse: OnLapse::Retry, on_server_error: OnServerError::Retry, ..Policy::default() }
    }

    /// Stripe's dialect with the rules that its clients rely on: one key per account, errors replayed.
    pub fn stripe() -> Policy {
        Policy {
            profile: Profile::Stripe,
            scope: ScopeRule::Tenant,
            on_server_error: OnServerError::Store,
            ..Policy::default()
        }
    }

    /// OASIS Repeatable Requests: the key in `Repeatability-Request-ID`, the same for all of a tenant's operations.
    pub fn repeatability() -> Policy {
        Policy {
            profile: Profile::Repeatability,
            scope: ScopeRule::Tenant,
            key_from: KeyFrom::header(REQUEST_ID),
            ..Policy::default()
        }
    }

    /// The policy that goes by this name in a configuration.
    pub fn preset(name: &str) -> Option<Policy> {
        PRESETS.iter().find(|(known, _)| *known == name).map(|(_, make)| make())
    }

    /// How long after its begin an Attempt is over: nobody delivers or reads for it any more.
    pub fn over_in(&self) -> Duration {
        self.upstream_timeout + self.linger
    }
}

/// A name and the policy that goes by it.
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
        // Two fields, as the releases before wrote them.
        let old = minicbor::to_vec((60_000_000u64, 7u32)).unwrap();
        let read: Reconcile = minicbor::decode(&old).unwrap();
        assert_eq!(read, Reconcile::new(Duration::from_secs(60), 7));
    }
}
