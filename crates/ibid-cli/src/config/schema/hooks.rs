//! Keys of `[[hook]]`, a source of signed webhooks.

use super::{ConfigKey, key};

pub(super) const KEYS: &[ConfigKey] = &[
    key(
        "hook",
        "name",
        "string",
        "The last part of its address, `POST /.ibid/hooks/{name}`, and its label in metrics: `a-z`, `0-9`, `-` and `_`.",
    ),
    key(
        "hook",
        "match",
        "method and path",
        "The operation whose records it settles, as clients send it. It must be guarded, and not with `bind = \"principal\"`. A hook has this, or settles effects (`downstream_key`, `kind`).",
    ),
    key(
        "hook",
        "scheme",
        "`standard`, `stripe`, `hmac`",
        "The signature scheme of its webhooks. `standard` is Standard Webhooks 1.0. A signature may be at most 5 minutes old.",
    ),
    key(
        "hook",
        "secrets",
        "array of strings",
        "The secrets that its webhooks are signed with: each literally, or as `env:NAME` or `file:PATH`. More than one while a secret is being rotated. At least 16 bytes each.",
    ),
    key("hook", "header", "header name", "`hmac`: the field with the signature."),
    key("hook", "prefix", "string", "`hmac`: the text before the digest, such as `sha256=`."),
    key(
        "hook",
        "encoding",
        "`hex`, `base64`",
        "`hmac`: the encoding of the digest. Most senders without a standard write hex.",
    ),
    key(
        "hook",
        "timestamp",
        "header name or `none`",
        "`hmac`: the field with the signed instant, in seconds. `none` must be explicit: then nothing bounds the time in which an intercepted webhook can be sent again.",
    ),
    key("hook", "signed", "string", "`hmac`: the text that is signed."),
    key(
        "hook",
        "tenant",
        "JSON pointer",
        "With `match`: where the payload names the tenant. Required unless there is one tenant: otherwise one tenant's payment could settle another's record.",
    ),
    key("hook", "key", "JSON pointer", "With `match`: where the payload has the client's key."),
    key(
        "hook",
        "downstream_key",
        "JSON pointer",
        "Instead of `match`: where the payload has the key that the outbox sent with the call. The hook settles the effect with that key, in a process that has a worker for it. Events with other keys are ignored.",
    ),
    key(
        "hook",
        "kind",
        "string",
        "Instead of `match`: effects of this kind are found by `provider_id` if the payload has no `downstream_key`. The kind is required for that, because two providers may use the same id.",
    ),
    key("hook", "outcome", "JSON pointer", "Where the payload has the outcome."),
    key(
        "hook",
        "executed",
        "array of strings",
        "Outcomes that mean that it was executed. A decline is one: its response is stored and replayed.",
    ),
    key(
        "hook",
        "not_executed",
        "array of strings",
        "Outcomes after which the provider will never execute it: the key is released, or the effect's call is repeated. They need `event_time`, which must be after the attempt's end (`upstream_timeout` and `linger` from its start), or at least the effect's `settle` after its call. Every other outcome is ignored.",
    ),
    key("hook", "status", "HTTP status", "The status of the stored response."),
    key(
        "hook",
        "statuses",
        "table of HTTP statuses",
        "The status by outcome, where it differs from `status`, such as `{ \"payment.declined\" = 402 }`.",
    ),
    key(
        "hook",
        "body",
        "JSON pointer",
        "Where the payload has the body of the response to store, or the effect's result. By default the whole payload.",
    ),
    key(
        "hook",
        "provider_id",
        "JSON pointer",
        "Where the payload has the provider's id of the operation, which is stored with the record or the effect; with `kind`, effects are also found by it.",
    ),
    key(
        "hook",
        "event",
        "JSON pointer",
        "Where the payload has the event's id, by which a second delivery is recognised. By default `webhook-id` (`standard`) or `/id` (`stripe`); `hmac` needs one.",
    ),
    key(
        "hook",
        "event_time",
        "JSON pointer",
        "Where the payload has the time of the event: seconds or milliseconds since the epoch, or RFC 3339. By default the time of arrival. With it, a webhook that was delayed for long does not settle a later attempt. Required with `not_executed`.",
    ),
];
