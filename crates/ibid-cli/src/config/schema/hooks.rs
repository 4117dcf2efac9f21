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
        "The operation whose records it speaks of, as clients send it. It must be guarded, and not with `bind = \"principal\"`. A hook has this, or speaks of effects (`downstream_key`, `kind`).",
    ),
    key(
        "hook",
        "scheme",
        "`standard`, `stripe`, `hmac`",
        "How its webhooks are signed. `standard` is Standard Webhooks 1.0. A signature is at most 5 minutes old.",
    ),
    key(
        "hook",
        "secrets",
        "array of strings",
        "What its webhooks are signed with, each as it stands, `env:NAME` or `file:PATH`; more than one while a secret is being changed. At least 16 bytes each.",
    ),
    key("hook", "header", "header name", "`hmac`: the field with the signature."),
    key("hook", "prefix", "string", "`hmac`: what stands before the digest, such as `sha256=`."),
    key(
        "hook",
        "encoding",
        "`hex`, `base64`",
        "`hmac`: how the digest is written. Most that have no standard write hex.",
    ),
    key(
        "hook",
        "timestamp",
        "header name or `none`",
        "`hmac`: the field with the instant that is signed, in seconds. `none` must be said: then nothing bounds in time how long a webhook that somebody caught can be sent again.",
    ),
    key("hook", "signed", "string", "`hmac`: what is signed."),
    key(
        "hook",
        "tenant",
        "JSON pointer",
        "With `match`: where the payload names the tenant. Needed unless there is one tenant: else one tenant's payment could settle another's record.",
    ),
    key("hook", "key", "JSON pointer", "With `match`: where the payload has the client's key."),
    key(
        "hook",
        "downstream_key",
        "JSON pointer",
        "Instead of `match`: where the payload has the key that the outbox called under. The effect of that key is settled, in a process that has a worker for it. Events under other keys are ignored.",
    ),
    key(
        "hook",
        "kind",
        "string",
        "Instead of `match`: effects of this kind are found by `provider_id` where the payload has no `downstream_key`. It is needed for that, because two providers may use one id.",
    ),
    key("hook", "outcome", "JSON pointer", "Where the payload says what became of it."),
    key(
        "hook",
        "executed",
        "array of strings",
        "Outcomes that say it was executed. A decline is one: its answer is kept and replayed.",
    ),
    key(
        "hook",
        "not_executed",
        "array of strings",
        "Outcomes after which the provider will never execute it: the key is left free, or the effect called again. They need `event_time` and count only of an instant after the attempt's end (`upstream_timeout` and `linger` from its begin), or the effect's `settle` after its call. Every other outcome is ignored.",
    ),
    key("hook", "status", "HTTP status", "Under which the answer is kept."),
    key(
        "hook",
        "statuses",
        "table of HTTP statuses",
        "The same by outcome, such as `{ \"payment.declined\" = 402 }`.",
    ),
    key(
        "hook",
        "body",
        "JSON pointer",
        "The body of the answer to be kept, or the effect's result, as it stands in the payload. By default the whole payload.",
    ),
    key(
        "hook",
        "provider_id",
        "JSON pointer",
        "The provider's own id of what was done, kept with the record or the effect; with `kind`, an effect is found by it, too.",
    ),
    key(
        "hook",
        "event",
        "JSON pointer",
        "The event's id, by which a second delivery is known. By default `webhook-id` (`standard`) or `/id` (`stripe`); `hmac` needs one.",
    ),
    key(
        "hook",
        "event_time",
        "JSON pointer",
        "When it happened: seconds or milliseconds since the epoch, or RFC 3339. By default when it arrived. With it, a webhook that was long under way does not settle a later attempt. Required with `not_executed`.",
    ),
];
