//! Refusals: one table from the reason to code, status, advice and text, for every profile.
//!
//! A refusal never contains a key, a fingerprint, a stored body or a store's name: its texts are constants.

mod table;

use std::fmt::Write as _;
use std::time::Duration;

use crate::key::KeyError;
use crate::policy::Profile;

/// A reason to refuse a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "each refusal is rendered by the layer")]
pub enum Refusal {
    /// The route requires a key, and the request has none.
    KeyMissing,
    /// The key cannot be read.
    KeyInvalid(KeyError),
    /// The key was used for another request.
    KeyReused,
    /// The first request is still running, or a retry may be made a little later.
    RequestInProgress {
        /// Time after which the client should retry.
        retry_after: Duration,
    },
    /// It is not known whether the request was executed.
    OutcomeUnknown {
        /// Time after which the next lookup may have settled it. `None`: only an operator can.
        retry_after: Option<Duration>,
    },
    /// The key cannot be reserved, so nothing was executed.
    StoreUnavailable {
        /// Time after which a retry is worthwhile.
        retry_after: Duration,
    },
    /// There is no room for the request.
    Overloaded,
    /// The request's body is larger than the route reads.
    BodyTooLarge,
    /// The request's body did not arrive in time.
    BodyTimeout,
    /// The request's body broke off.
    BodyBroken,
    /// The request was executed once, and its response is not stored.
    ResponseNotRetained,
    /// The key's retention is over.
    KeyExpired,
    /// The request names no tenant.
    TenantMissing,
    /// The upstream could not be reached: nothing was sent.
    UpstreamUnavailable,
    /// The request was sent, and its response was lost.
    UpstreamUncertain {
        /// `true` if no response came in time, `false` if the connection or the response broke.
        timed_out: bool,
        /// `true` if a late response, a lookup or evidence may still settle it; otherwise only an operator can.
        may_settle: bool,
    },
    /// The handler failed, for instance by a panic.
    HandlerFailed,
    /// The request came as TLS early data, which an attacker may replay.
    TooEarly,
    /// Never claimed within the pending deadline; stored as the response.
    NeverStarted,
    /// The lease lapsed and the policy says `fail`; stored as the response.
    Abandoned,
    /// The request was first sent longer ago than its key is remembered.
    RequestTooOld,
    /// The operation cannot be repeated, and the request asks for that.
    NotRepeatable,
    /// The field that says when the request was first sent is missing or not an IMF-fixdate.
    FirstSentInvalid,
    /// Servers read the path differently, so the operation is ambiguous.
    PathAmbiguous,
    /// The path is longer than a record can store.
    PathTooLong,
    /// The request's target has no path.
    TargetInvalid,
    /// The request has no host, more than one, or one that cannot be read.
    HostInvalid,
    /// The body has a transfer coding besides `chunked`.
    TransferCoding,
    /// A webhook from an unknown source, or without a valid signature.
    HookRefused,
    /// A signed webhook that lacks what its mapping points at.
    HookUnreadable,
}

/// The next step that a client should take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Retry the same request under the same key, later.
    SameKey,
    /// Send a corrected request under a new key.
    NewKey,
    /// Do not retry: it would change nothing.
    Never,
}

impl Advice {
    /// Returns the word for it in a refusal.
    pub fn name(self) -> &'static str {
        match self {
            Advice::SameKey => "same-key",
            Advice::NewKey => "new-key",
            Advice::Never => "never",
        }
    }
}

/// A refusal as it is sent in one profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedRefusal {
    /// HTTP status of the refusal.
    pub status: u16,
    /// Media type of the body.
    pub content_type: &'static str,
    /// Value of `Retry-After` in seconds.
    pub retry_after: Option<u64>,
    /// Body of the refusal.
    pub body: String,
}

/// All refusals, each once, for the reference page and its tests.
pub const ALL: [Refusal; 31] = [
    Refusal::KeyMissing,
    Refusal::KeyInvalid(KeyError::Syntax),
    Refusal::KeyReused,
    Refusal::RequestInProgress { retry_after: Duration::from_secs(1) },
    Refusal::OutcomeUnknown { retry_after: Some(Duration::from_secs(5)) },
    Refusal::OutcomeUnknown { retry_after: None },
    Refusal::StoreUnavailable { retry_after: Duration::from_secs(1) },
    Refusal::Overloaded,
    Refusal::BodyTooLarge,
    Refusal::BodyTimeout,
    Refusal::BodyBroken,
    Refusal::ResponseNotRetained,
    Refusal::KeyExpired,
    Refusal::TenantMissing,
    Refusal::UpstreamUnavailable,
    Refusal::UpstreamUncertain { timed_out: false, may_settle: true },
    Refusal::UpstreamUncertain { timed_out: true, may_settle: false },
    Refusal::HandlerFailed,
    Refusal::TooEarly,
    Refusal::NeverStarted,
    Refusal::Abandoned,
    Refusal::RequestTooOld,
    Refusal::NotRepeatable,
    Refusal::FirstSentInvalid,
    Refusal::PathAmbiguous,
    Refusal::PathTooLong,
    Refusal::TargetInvalid,
    Refusal::HostInvalid,
    Refusal::TransferCoding,
    Refusal::HookRefused,
    Refusal::HookUnreadable,
];

impl Refusal {
    /// Returns the name of the problem type, unique per condition.
    pub fn code(self) -> &'static str {
        self.row().code
    }

    /// Returns the status in this profile.
    pub fn status(self, profile: Profile) -> u16 {
        match (self, profile) {
            // Stripe's clients retry every 409 and 5xx, so a mismatch must be neither.
            (Refusal::KeyReused, Profile::Stripe | Profile::Repeatability) => 400,
            (Refusal::UpstreamUncertain { timed_out: true, .. }, _) => 504,
            _ => self.row().status,
        }
    }

    /// Returns the next step that the client should take.
    pub fn advice(self) -> Advice {
        match self {
            Refusal::OutcomeUnknown { retry_after: None }
            | Refusal::UpstreamUncertain { may_settle: false, .. } => Advice::Never,
            _ => self.row().advice,
        }
    }

    /// Returns the time after which the client should retry, if it is known.
    pub fn retry_after(self) -> Option<Duration> {
        match self {
            Refusal::RequestInProgress { retry_after } | Refusal::StoreUnavailable { retry_after } => {
                Some(retry_after)
            }
            Refusal::OutcomeUnknown { retry_after } => retry_after,
            Refusal::UpstreamUnavailable | Refusal::Overloaded => Some(OUTAGE_RETRY_AFTER),
            _ => None,
        }
    }

    /// Returns a one-line title, the same for every occurrence.
    pub fn title(self) -> &'static str {
        self.row().title
    }

    /// Returns what happened and what to do, as text for the client's developer.
    pub fn detail(self) -> &'static str {
        match self {
            Refusal::KeyInvalid(KeyError::Repeated) => "The request carries its key more than once.",
            Refusal::KeyInvalid(KeyError::Empty) => "The key is empty.",
            Refusal::KeyInvalid(KeyError::TooLong) => "The key is longer than 255 bytes.",
            Refusal::KeyInvalid(KeyError::NotText) => "The key in the body is not a string.",
            Refusal::KeyInvalid(KeyError::Unsearchable) => {
                "The body may carry the key and can not be searched. It must be well-formed JSON or a form, say so in \
                 Content-Type, and have no content coding."
            }
            Refusal::OutcomeUnknown { retry_after: None } => {
                "The first request may have been executed, and no automatic check can tell. An operator has to settle it; \
                 it will not be executed again."
            }
            Refusal::UpstreamUncertain { may_settle: false, .. } => {
                "The request was sent, and its response was lost. No automatic check can tell its outcome, so an \
                 operator has to settle it; it will not be executed again."
            }
            _ => self.row().detail,
        }
    }

    /// Renders the refusal in this profile.
    pub fn render(self, profile: Profile) -> RenderedRefusal {
        let status = self.status(profile);
        let retry = self.advice().name();
        let mut body = String::with_capacity(320);
        // All texts are constants of this module without quotes and backslashes, so they are valid JSON as they are; a
        // test parses each. Writing into a `String` cannot fail.
        let (content_type, written) = match profile {
            Profile::Ietf | Profile::Repeatability => (
                "application/problem+json",
                write!(
                    body,
                    r#"{{"type":"{TYPE_PREFIX}{code}","title":"{title}","status":{status},"detail":"{detail}","retry":"{retry}"}}"#,
                    code = self.code(),
                    title = self.title(),
                    detail = self.detail(),
                ),
            ),
            Profile::Stripe => (
                "application/json",
                write!(
                    body,
                    r#"{{"error":{{"type":"{kind}","code":"{code}","message":"{detail}","retry":"{retry}"}}}}"#,
                    kind = self.stripe_type(),
                    code = self.stripe_code(),
                    detail = self.detail(),
                ),
            ),
        };
        written.expect("a String takes every character");
        // Rounded up: a retry one second early would only get another refusal.
        let retry_after = self.retry_after().map(|after| after.as_millis().div_ceil(1000).max(1) as u64);
        RenderedRefusal { status, content_type, retry_after, body }
    }

    fn stripe_type(self) -> &'static str {
        match self {
            Refusal::KeyReused | Refusal::RequestInProgress { .. } => "idempotency_error",
            _ if self.status(Profile::Stripe) >= 500 => "api_error",
            _ => "invalid_request_error",
        }
    }

    fn stripe_code(self) -> &'static str {
        match self {
            Refusal::RequestInProgress { .. } => "idempotency_key_in_use",
            _ => self.code(),
        }
    }
}

/// Prefix of a problem's `type`. A name, not an address: no host has to serve it.
pub const TYPE_PREFIX: &str = "urn:ibid:problem:";

/// Value of `Retry-After` when an upstream refused the connection or there is no room.
///
/// It is not known when the next connection succeeds. One second is soon enough, and a thousand waiting clients are
/// then a thousand requests per second.
const OUTAGE_RETRY_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn every_refusal_is_valid_problem_json() {
        for refusal in ALL {
            let rendered = refusal.render(Profile::Ietf);
            let body: Value = serde_json::from_str(&rendered.body).unwrap();
            assert_eq!(body["type"], format!("urn:ibid:problem:{}", refusal.code()));
            assert_eq!(body["status"], rendered.status);
            assert_eq!(rendered.content_type, "application/problem+json");
            assert!(matches!(body["retry"].as_str(), Some("same-key" | "new-key" | "never")));
            assert!(
                !body["title"].as_str().unwrap().is_empty() && !body["detail"].as_str().unwrap().is_empty()
            );
        }
    }

    #[test]
    fn the_statuses_are_those_of_the_contract() {
        for refusal in ALL {
            // Without a wildcard, so that a new refusal has to be looked up in the contract.
            let status = match refusal {
                Refusal::KeyMissing
                | Refusal::KeyInvalid(_)
                | Refusal::BodyBroken
                | Refusal::FirstSentInvalid
                | Refusal::PathAmbiguous
                | Refusal::TargetInvalid
                | Refusal::HostInvalid => 400,
                Refusal::TenantMissing | Refusal::HookRefused => 401,
                Refusal::BodyTimeout | Refusal::NeverStarted => 408,
                Refusal::RequestInProgress { .. } | Refusal::OutcomeUnknown { .. } => 409,
                Refusal::ResponseNotRetained | Refusal::KeyExpired => 410,
                Refusal::RequestTooOld => 412,
                Refusal::BodyTooLarge => 413,
                Refusal::PathTooLong => 414,
                Refusal::KeyReused | Refusal::HookUnreadable => 422,
                Refusal::TooEarly => 425,
                Refusal::HandlerFailed | Refusal::Abandoned => 500,
                Refusal::NotRepeatable | Refusal::TransferCoding => 501,
                Refusal::UpstreamUncertain { timed_out: false, .. } => 502,
                Refusal::StoreUnavailable { .. } | Refusal::Overloaded | Refusal::UpstreamUnavailable => 503,
                Refusal::UpstreamUncertain { timed_out: true, .. } => 504,
            };
            // Stripe's clients retry a 409 and every 5xx, and those of `repeatability` expect 400.
            let mismatch = if refusal == Refusal::KeyReused { 400 } else { status };
            assert_eq!(refusal.status(Profile::Ietf), status, "{refusal:?}");
            assert_eq!(refusal.status(Profile::Stripe), mismatch, "{refusal:?}");
            assert_eq!(refusal.status(Profile::Repeatability), mismatch, "{refusal:?}");
        }
    }

    #[test]
    fn stripe_clients_get_stripes_shape_and_never_repeat_a_mismatch() {
        let mismatch = Refusal::KeyReused.render(Profile::Stripe);
        assert_eq!(mismatch.status, 400);
        let body: Value = serde_json::from_str(&mismatch.body).unwrap();
        assert_eq!(body["error"]["type"], "idempotency_error");
        let busy = Refusal::RequestInProgress { retry_after: Duration::from_secs(1) }.render(Profile::Stripe);
        let body: Value = serde_json::from_str(&busy.body).unwrap();
        assert_eq!((busy.status, body["error"]["code"].as_str()), (409, Some("idempotency_key_in_use")));
    }

    #[test]
    fn retry_after_is_rounded_up_to_whole_seconds_and_never_zero() {
        let after = |millis| {
            let retry_after = Duration::from_millis(millis);
            Refusal::RequestInProgress { retry_after }.render(Profile::Ietf).retry_after
        };
        assert_eq!(after(0), Some(1));
        assert_eq!(after(1_000), Some(1));
        assert_eq!(after(1_001), Some(2));
        assert_eq!(Refusal::OutcomeUnknown { retry_after: None }.render(Profile::Ietf).retry_after, None);
    }
}
