//! The table of refusals: code, status, advice and texts of each.

use super::{Advice, Refusal};

impl Refusal {
    /// Returns this refusal's row of the table.
    pub(super) fn row(self) -> Row {
        use Advice::{Never, NewKey, SameKey};
        let row = |code, status, advice, title, detail| Row { code, status, advice, title, detail };
        match self {
            Refusal::KeyMissing => row(
                "key-missing",
                400,
                NewKey,
                "An idempotency key is required",
                "Send a key where this API takes it, by default in the field Idempotency-Key: a value of your own, the \
                 same for every retry of this request.",
            ),
            Refusal::KeyInvalid(_) => row(
                "key-invalid",
                400,
                NewKey,
                "The idempotency key can not be read",
                "A key is a quoted string, or 1 to 255 visible ASCII characters without quote, backslash, comma and \
                 semicolon.",
            ),
            Refusal::KeyReused => row(
                "key-reused",
                422,
                NewKey,
                "The idempotency key was used for another request",
                "A retry must be the same request. Send a different request under a different key.",
            ),
            Refusal::RequestInProgress { .. } => row(
                "request-in-progress",
                409,
                SameKey,
                "The request is in progress",
                "A request with this key has no response yet. Send the same request again later.",
            ),
            Refusal::OutcomeUnknown { .. } => row(
                "outcome-unknown",
                409,
                SameKey,
                "The outcome of the request is unknown",
                "The first request may have been executed. It is being settled and will not be executed again; the \
                 same request will get its response.",
            ),
            Refusal::StoreUnavailable { .. } => row(
                "store-unavailable",
                503,
                SameKey,
                "The request can not be guarded now",
                "Nothing was executed. Send the same request again later.",
            ),
            Refusal::Overloaded => row(
                "overloaded",
                503,
                SameKey,
                "There are too many requests at once",
                "Nothing was reserved, and nothing was executed for this request. Send the same request again later.",
            ),
            Refusal::BodyTooLarge => row(
                "body-too-large",
                413,
                NewKey,
                "The request body is too large",
                "Nothing was executed, and the key was not used.",
            ),
            Refusal::BodyTimeout => row(
                "body-timeout",
                408,
                SameKey,
                "The request body did not arrive in time",
                "Nothing was executed, and the key was not used.",
            ),
            Refusal::BodyBroken => row(
                "body-broken",
                400,
                SameKey,
                "The request body broke off",
                "Nothing was executed, and the key was not used.",
            ),
            Refusal::ResponseNotRetained => row(
                "response-not-retained",
                410,
                Never,
                "The request was executed, and its response was not kept",
                "The response was too large or a stream. The request was executed once and will not be executed again; \
                 look at the resource itself.",
            ),
            Refusal::KeyExpired => row(
                "key-expired",
                410,
                NewKey,
                "The idempotency key has expired",
                "The first request was completed longer ago than responses are kept. Check its outcome before you \
                 send it under a new key.",
            ),
            Refusal::TenantMissing => row(
                "tenant-missing",
                401,
                SameKey,
                "The request does not say whose it is",
                "A guarded request needs an authenticated caller.",
            ),
            Refusal::UpstreamUnavailable => row(
                "upstream-unavailable",
                503,
                SameKey,
                "The service can not be reached",
                "Nothing was executed. Send the same request again later.",
            ),
            Refusal::UpstreamUncertain { .. } => row(
                "outcome-unknown",
                502,
                SameKey,
                "The outcome of the request is unknown",
                "The request was sent, and its response was lost. It will not be executed again under this key; the \
                 same request will get its response once it is settled.",
            ),
            Refusal::HandlerFailed => row(
                "handler-failed",
                500,
                SameKey,
                "The service broke down",
                "The request may have been executed in part.",
            ),
            Refusal::TooEarly => row(
                "too-early",
                425,
                SameKey,
                "The request came too early",
                "Nothing was executed. Send the same request again once the TLS handshake is complete.",
            ),
            Refusal::NeverStarted => row(
                "never-started",
                408,
                NewKey,
                "The request was not started in time",
                "It was accepted, but nothing was executed before its deadline.",
            ),
            Refusal::Abandoned => row(
                "abandoned",
                500,
                Never,
                "The request was abandoned",
                "It was started and not finished. It may have been executed in part and will not be executed again.",
            ),
            Refusal::RequestTooOld => row(
                "request-too-old",
                412,
                NewKey,
                "The request was first sent too long ago",
                "Nothing was executed now. Whether it was executed before is no longer known here: check that before you \
                 send it under a new key.",
            ),
            Refusal::NotRepeatable => row(
                "not-repeatable",
                501,
                Never,
                "The operation can not be repeated",
                "Nothing was executed. This operation takes requests without repeatability fields only.",
            ),
            Refusal::FirstSentInvalid => row(
                "first-sent-invalid",
                400,
                NewKey,
                "The request does not say when it was first sent",
                "Nothing was executed. Send one date of the form Tue, 15 Nov 1994 08:12:31 GMT, the same for every retry.",
            ),
            Refusal::PathAmbiguous => row(
                "path-ambiguous",
                400,
                NewKey,
                "Servers read the path differently",
                "Nothing was executed, and the key was not used. Send the path without empty segments, dot segments, \
                 control characters, malformed escapes and raw characters outside ASCII; where the request is not \
                 guarded, also without encoded slashes and backslashes and path parameters.",
            ),
            Refusal::PathTooLong => row(
                "path-too-long",
                414,
                NewKey,
                "The path is too long",
                "Nothing was executed, and the key was not used. The path of a guarded request has at most 2048 bytes.",
            ),
            Refusal::TargetInvalid => row(
                "target-invalid",
                400,
                NewKey,
                "The request has no path",
                "Nothing was executed, and the key was not used. The target of a guarded request is a path or a URL.",
            ),
            Refusal::HostInvalid => row(
                "host-invalid",
                400,
                NewKey,
                "The request does not name one host",
                "Nothing was executed, and the key was not used. A request has one Host field with a name or address \
                 and perhaps a port; only HTTP/1.0 may leave it out.",
            ),
            Refusal::TransferCoding => row(
                "transfer-coding",
                501,
                NewKey,
                "The transfer coding is not supported",
                "Nothing was executed, and the key was not used. The only transfer coding of a request is chunked.",
            ),
            // One text for every cause, so that an attacker who guesses learns nothing.
            Refusal::HookRefused => row(
                "hook-refused",
                401,
                SameKey,
                "The webhook is not accepted",
                "It must come from a configured source and carry a valid and recent signature.",
            ),
            Refusal::HookUnreadable => row(
                "hook-unreadable",
                422,
                SameKey,
                "The webhook does not name a record",
                "Its signature is valid, and its payload lacks what the mapping of this source points at.",
            ),
        }
    }
}

/// The constant parts of a refusal, the same in every profile unless the refusal says otherwise.
pub(super) struct Row {
    pub(super) code: &'static str,
    pub(super) status: u16,
    pub(super) advice: Advice,
    pub(super) title: &'static str,
    pub(super) detail: &'static str,
}
