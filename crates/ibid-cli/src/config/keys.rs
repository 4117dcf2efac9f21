//! Every key of the configuration, with its type, its default and the reason for that default.
//!
//! The reference page is made from this list, hints quote it, and tests hold the reader to it: a key that is read
//! and not listed, or listed and not read, fails them, and so does a default that is not the one in use.

/// One key.
pub(crate) struct Key {
    /// The table it stands in; empty for the top level.
    pub(crate) section: &'static str,
    pub(crate) key: &'static str,
    /// What may stand there.
    #[cfg_attr(not(test), allow(dead_code, reason = "for the reference page, which a test writes"))]
    pub(crate) kind: &'static str,
    /// As it would be written; empty where there is none.
    pub(crate) default: &'static str,
    /// What it does, and why the default is what it is.
    #[cfg_attr(not(test), allow(dead_code, reason = "for the reference page, which a test writes"))]
    pub(crate) why: &'static str,
}

/// The key, if `section` has it. A route has every key of `[defaults]`, too.
pub(crate) fn find(section: &str, key: &str) -> Option<&'static Key> {
    let holds =
        |known: &&Key| known.section == section || (section == "route" && known.section == "defaults");
    KEYS.iter().filter(holds).find(|known| known.key == key)
}

/// Whether the section may hold the key, tables included.
pub(crate) fn is_known(section: &str, key: &str) -> bool {
    let is_table = match section {
        "" => ["store", "tenant", "defaults", "route", "fingerprint", "hook", "upkeep", "server", "limits"]
            .contains(&key),
        "route" => key == "reconcile",
        _ => false,
    };
    is_table || find(section, key).is_some()
}

/// How a section is spoken of.
pub(crate) fn title(section: &str) -> String {
    match section {
        "" => "the top level".to_owned(),
        "route" => "`[[route]]`".to_owned(),
        "hook" => "`[[hook]]`".to_owned(),
        name => format!("`[{name}]`"),
    }
}

const fn key(
    section: &'static str,
    key: &'static str,
    kind: &'static str,
    default: &'static str,
    why: &'static str,
) -> Key {
    Key { section, key, kind, default, why }
}

/// In the order of the reference page.
pub(crate) const KEYS: &[Key] = &[
    key(
        "",
        "upstream",
        "URL",
        "",
        "The API behind the gateway: an absolute `http://` URL. Required, for nothing can be guessed. Also `--upstream`, `IBID_UPSTREAM`.",
    ),
    key(
        "",
        "listen",
        "address",
        "\"127.0.0.1:8080\"",
        "Where clients connect. Loopback until you say otherwise: a gateway that moves money should not be open by accident. Also `--listen`, `IBID_LISTEN`.",
    ),
    key(
        "",
        "admin_listen",
        "address",
        "\"127.0.0.1:8081\"",
        "Where operators connect. A listener of its own, so that no path of your API is taken and a firewall can tell them apart. Also `--admin-listen`, `IBID_ADMIN_LISTEN`.",
    ),
    key(
        "",
        "upstream_http2",
        "boolean",
        "false",
        "Speak HTTP/2 to the upstream. Off, for a server without HTTP/2 would refuse every request. Also `--upstream-http2`, `IBID_UPSTREAM_HTTP2`.",
    ),
    key(
        "store",
        "url",
        "`sqlite:PATH`, `postgres://USER@HOST/DATABASE`, `memory:`",
        "\"sqlite:ibid.db\"",
        "Where records live. A file needs no server and survives a crash; PostgreSQL is for gateways on several machines; `memory:` is for tests. A PostgreSQL URL takes the parameters `connections_max=8`, `prepare=false` (for a pooler that hands each transaction to another session) and `accept_weak_durability=true` besides those of libpq; with `sslmode=require` or stricter, certificate and name are checked, against `sslrootcert=PATH` or the system's, and without it there is no TLS. Also `--store`, `IBID_STORE`.",
    ),
    key(
        "store",
        "begin_timeout",
        "duration",
        "\"2s\"",
        "How long a request waits for the store before it gets 503 and nothing is run. Clients wait 10 s and more, so there is time for their retry.",
    ),
    key(
        "store",
        "finish_wait",
        "duration",
        "\"10s\"",
        "How long an answer waits to become durable before it leaves with `Idempotency-Stored: false`. Longer than a store's fail-over usually takes, shorter than most clients' patience.",
    ),
    key(
        "store",
        "cache_bytes",
        "size",
        "\"32MiB\"",
        "Completed records kept in memory for replays; `0` keeps none. Some ten thousand answers of an ordinary API.",
    ),
    key(
        "store",
        "cache_ttl",
        "duration",
        "\"60s\"",
        "How long one is kept there. Most retries come within a minute, and forgetting a record is final everywhere after this time.",
    ),
    key(
        "tenant",
        "from",
        "`header:NAME`, `authorization`, `none`",
        "",
        "Whose keys they are. Required: two clients may choose the same key, and without a tenant one would get the other's answer. Also `--tenant`, `IBID_TENANT`.",
    ),
    key(
        "tenant",
        "trusted",
        "array of networks or addresses",
        "[\"127.0.0.0/8\", \"::1\"]",
        "Hops whose tenant header is believed; from others it is stripped. Loopback: a proxy on the same host authenticates, anyone else could claim to be anyone.",
    ),
    key(
        "fingerprint",
        "secrets",
        "array of strings",
        "",
        "What fingerprints are keyed with, newest first, at least 16 bytes each. Without any, one is made once and kept in the store: fine until the store's readers should not be able to guess bodies. Also `IBID_SECRETS`, comma-separated.",
    ),
    key(
        "defaults",
        "profile",
        "`ietf`, `stripe`",
        "\"ietf\"",
        "The dialect in which clients are answered. The IETF draft is nobody's own. `stripe` also sets `scope = \"tenant\"` and `on_server_error = \"store\"`, which Stripe's clients rely on.",
    ),
    key(
        "defaults",
        "key",
        "`required`, `optional`",
        "\"required\"",
        "Whether a request without a key is refused. A request without one can't be retried safely, and its sender should learn that from the first.",
    ),
    key(
        "defaults",
        "strict_key",
        "boolean",
        "false",
        "Take quoted keys only. Off, for most clients send them bare.",
    ),
    key(
        "defaults",
        "scope",
        "`operation`, `tenant`",
        "\"operation\"",
        "How far one key reaches. The same key on another endpoint is another request by the draft; under `tenant` it is a mismatch.",
    ),
    key(
        "defaults",
        "bind",
        "`tenant`, `principal`",
        "\"tenant\"",
        "To whom within the tenant a key belongs. Under `principal` each credential (the bytes of `Authorization`) has keys of its own, which narrows what a stolen key is good for and makes a client that changes its credential between two retries a new one.",
    ),
    key(
        "defaults",
        "in_flight",
        "`wait`, `conflict`, `accepted`",
        "\"wait\"",
        "What a duplicate of a running request gets. Held, it usually gets the answer itself; `conflict` is 409 at once, `accepted` 202 with the status page.",
    ),
    key(
        "defaults",
        "wait",
        "duration, may be zero",
        "\"5s\"",
        "How long it is held. Most requests are done by then, and a client's own time-out is further off.",
    ),
    key(
        "defaults",
        "answer",
        "`sync`, `async`, `prefer`",
        "\"sync\"",
        "Answer when the work is done. `async` answers 202 with the status page and delivers then; `prefer` does so for clients that send `Prefer: respond-async`. The request is kept in the store until it is done, credentials included.",
    ),
    key(
        "defaults",
        "lease",
        "duration",
        "\"60s\"",
        "An attempt's right to run, renewed at a third of its length while it lives. Two renewals may fail before it lapses; after a crash a record is stuck for at most this long.",
    ),
    key(
        "defaults",
        "max_run",
        "duration",
        "\"15m\"",
        "Where renewal ends, so that a hung attempt lapses. Longer than any request should take.",
    ),
    key(
        "defaults",
        "retention",
        "duration",
        "\"24h\"",
        "How long an answer is replayed, from completion. What published APIs promise, and longer than a client's queue retries.",
    ),
    key(
        "defaults",
        "tombstone",
        "duration, may be zero",
        "\"0s\"",
        "How long past retention the row stays, for refusal and audit. None, for it costs storage and only `after_expiry = \"refuse\"` needs it.",
    ),
    key(
        "defaults",
        "after_expiry",
        "`execute`, `refuse`",
        "\"execute\"",
        "What a request gets whose record's retention is over. As new, because the draft says so; `refuse` (410) for as long as the tombstone stands.",
    ),
    key(
        "defaults",
        "on_lapse",
        "`unknown`, `retry`, `fail`",
        "\"unknown\"",
        "What becomes of a record whose attempt went silent. Nobody knows whether the upstream did the work. `retry` is your word that it deduplicates.",
    ),
    key(
        "defaults",
        "on_server_error",
        "`unknown`, `retry`, `store`",
        "\"unknown\"",
        "What becomes of a record whose answer proves nothing (500, 502, 504, other 5xx). `retry` is your word that the upstream rolled back; `store` makes the error the answer.",
    ),
    key(
        "defaults",
        "max_attempts",
        "number",
        "10",
        "After so many runs a lapsing request is not run again. Something that brought ten attempts down brings the next one down. An accepted request that was not executed in so many is its client's again, as a dead letter.",
    ),
    key(
        "defaults",
        "pending_deadline",
        "duration",
        "\"1h\"",
        "How long an accepted request may wait to be claimed. By then its sender has given up.",
    ),
    key(
        "defaults",
        "upstream_timeout",
        "duration",
        "\"30s\"",
        "How long the upstream may take before its result counts as uncertain. As long as most servers and proxies allow.",
    ),
    key(
        "defaults",
        "linger",
        "duration, may be zero",
        "\"30s\"",
        "How long an answer is still read after that. A late one settles the record itself, and most late ones are not very late.",
    ),
    key(
        "defaults",
        "max_request_body",
        "size",
        "\"1MiB\"",
        "Largest request body; more gets 413. Bodies are held in memory while the request runs, and JSON APIs rarely see more. At most 256MiB.",
    ),
    key(
        "defaults",
        "max_response_body",
        "size",
        "\"1MiB\"",
        "Largest response body that is kept; a larger one is passed on and its retries get 410. Every answer is stored for its whole retention. At most 256MiB.",
    ),
    key(
        "defaults",
        "free_on",
        "array of statuses",
        "[401, 403, 408, 425, 429, 501, 503]",
        "Statuses that are not stored and leave the key free: refused before the work, or asked to come again. 409 and 423 do so too when they carry `Retry-After`.",
    ),
    key(
        "defaults",
        "response_version",
        "number",
        "1",
        "Your API's own response shape, kept with the answer, so that you can tell old shapes from new.",
    ),
    key(
        "defaults",
        "fingerprint_headers",
        "array of header names",
        "[]",
        "Headers that make a request another one. None: most differ from retry to retry (dates, traces). `X-HTTP-Method-Override`, `X-HTTP-Method`, `X-Method-Override`, `SOAPAction` and `X-Amz-Target` always count, and in profile `stripe` also `Stripe-Account` and `Stripe-Context`.",
    ),
    key(
        "defaults",
        "include",
        "array of JSON pointers",
        "[]",
        "The only parts of a JSON body that count; none named: all of it. Safest, for a field left out could be the amount.",
    ),
    key(
        "defaults",
        "exclude",
        "array of JSON pointers",
        "[]",
        "Parts of a JSON body that do not count, such as a time stamp that the client sets anew.",
    ),
    key(
        "defaults",
        "body",
        "`auto`, `raw`",
        "\"auto\"",
        "How bodies are compared. By media type: clients write the same JSON in other bytes when they retry. `raw` compares bytes.",
    ),
    key(
        "defaults",
        "retry_horizon",
        "duration",
        "",
        "How long your clients retry. Only compared with `retention`: a shorter one is a warning, for the last retries would run again.",
    ),
    key(
        "route",
        "match",
        "`METHOD[,METHOD] /path`",
        "",
        "Required. Methods are POST, PATCH, PUT and DELETE; a path has `{name}` for one segment and `{*rest}` at its end for all that follow.",
    ),
    key(
        "route",
        "preset",
        "`payments`, `one-transaction`, `stripe`",
        "",
        "Rules by name, under the route's own keys. `payments`: retention 30d, tombstone 360d, after_expiry refuse.",
    ),
    key(
        "route",
        "guard",
        "`on`, `off`",
        "\"on\"",
        "`off` exempts the route: its requests pass untouched. The only way to do so, and always listed.",
    ),
    key(
        "route.reconcile",
        "request",
        "`GET /path`",
        "",
        "Required. How the upstream is asked what became of an unknown record; `{key}`, `{tenant}` and the names of `match` are filled in.",
    ),
    key(
        "route.reconcile",
        "headers",
        "table of strings",
        "{}",
        "Header lines of that request, filled in likewise. `{tenant}` must stand here or in `request`, unless there is one tenant: another tenant's answer must never settle a record.",
    ),
    key(
        "route.reconcile",
        "executed",
        "array of statuses",
        "[200]",
        "Answers that say it was executed; the answer becomes the stored response.",
    ),
    key(
        "route.reconcile",
        "not_executed",
        "array of statuses",
        "[404]",
        "Answers that say it was not, believed when seen twice, `settle` apart, after the attempt is over.",
    ),
    key(
        "route.reconcile",
        "settle",
        "duration",
        "\"60s\"",
        "From the moment the outcome became unknown to the first question, and between two that find nothing. At least 2 × `upstream_timeout`, and by default that if it is longer: before then a delivery may still run. The first question also waits for `upstream_timeout` + `linger`.",
    ),
    key(
        "route.reconcile",
        "attempts",
        "number",
        "10",
        "Tries before a person is asked. With growing pauses they span a longer outage.",
    ),
    key(
        "route.reconcile",
        "status",
        "status",
        "",
        "The status under which the found answer is stored, such as 201. Without it, the status of the found answer.",
    ),
    key(
        "hook",
        "name",
        "string",
        "",
        "The last part of its address, `POST /.ibid/hooks/{name}`, and its label in metrics: `a-z`, `0-9`, `-` and `_`.",
    ),
    key(
        "hook",
        "match",
        "method and path",
        "",
        "The operation whose records it speaks of, as clients send it. It must be guarded, and not with `bind = \"principal\"`. A hook has this, or speaks of effects (`downstream_key`, `kind`).",
    ),
    key(
        "hook",
        "scheme",
        "`standard`, `stripe`, `hmac`",
        "",
        "How its webhooks are signed. `standard` is Standard Webhooks 1.0. A signature is at most 5 minutes old.",
    ),
    key(
        "hook",
        "secrets",
        "array of strings",
        "",
        "What its webhooks are signed with, each as it stands, `env:NAME` or `file:PATH`; more than one while a secret is being changed. At least 16 bytes each.",
    ),
    key("hook", "header", "header name", "", "`hmac`: the field with the signature."),
    key("hook", "prefix", "string", "\"\"", "`hmac`: what stands before the digest, such as `sha256=`."),
    key(
        "hook",
        "encoding",
        "`hex`, `base64`",
        "\"hex\"",
        "`hmac`: how the digest is written. Most that have no standard write hex.",
    ),
    key(
        "hook",
        "timestamp",
        "header name or `none`",
        "",
        "`hmac`: the field with the instant that is signed, in seconds. `none` must be said: then nothing bounds in time how long a webhook that somebody caught can be sent again.",
    ),
    key("hook", "signed", "string", "\"{timestamp}.{body}\"", "`hmac`: what is signed."),
    key(
        "hook",
        "tenant",
        "JSON pointer",
        "",
        "With `match`: where the payload names the tenant. Needed unless there is one tenant: else one tenant's payment could settle another's record.",
    ),
    key("hook", "key", "JSON pointer", "", "With `match`: where the payload has the client's key."),
    key(
        "hook",
        "downstream_key",
        "JSON pointer",
        "",
        "Instead of `match`: where the payload has the key that the outbox called under. The effect of that key is settled, in a process that has a worker for it. Events under other keys are ignored.",
    ),
    key(
        "hook",
        "kind",
        "string",
        "",
        "Instead of `match`: effects of this kind are found by `provider_id` where the payload has no `downstream_key`. It is needed for that, because two providers may use one id.",
    ),
    key("hook", "outcome", "JSON pointer", "", "Where the payload says what became of it."),
    key(
        "hook",
        "executed",
        "array of strings",
        "[]",
        "Outcomes that say it was executed. A decline is one: its answer is kept and replayed.",
    ),
    key(
        "hook",
        "not_executed",
        "array of strings",
        "[]",
        "Outcomes after which the provider will never execute it: the key is left free, or the effect called again. They need `event_time` and count only of an instant after the attempt's end (`upstream_timeout` and `linger` from its begin), or the effect's `settle` after its call. Every other outcome is ignored.",
    ),
    key("hook", "status", "HTTP status", "200", "Under which the answer is kept."),
    key(
        "hook",
        "statuses",
        "table of HTTP statuses",
        "{}",
        "The same by outcome, such as `{ \"payment.declined\" = 402 }`.",
    ),
    key(
        "hook",
        "body",
        "JSON pointer",
        "\"\"",
        "The body of the answer to be kept, or the effect's result, as it stands in the payload. By default the whole payload.",
    ),
    key(
        "hook",
        "provider_id",
        "JSON pointer",
        "",
        "The provider's own id of what was done, kept with the record or the effect; with `kind`, an effect is found by it, too.",
    ),
    key(
        "hook",
        "event",
        "JSON pointer",
        "",
        "The event's id, by which a second delivery is known. By default `webhook-id` (`standard`) or `/id` (`stripe`); `hmac` needs one.",
    ),
    key(
        "hook",
        "event_time",
        "JSON pointer",
        "",
        "When it happened: seconds or milliseconds since the epoch, or RFC 3339. By default when it arrived. With it, a webhook that was long under way does not settle a later attempt. Required with `not_executed`.",
    ),
    key(
        "upkeep",
        "run",
        "boolean",
        "true",
        "Whether this gateway looks after the store. Any number may; turn it off where other nodes or `ibid sweep`, `reap` and `reconcile` do it. What is accepted to be run later is then delivered by others, too.",
    ),
    key(
        "upkeep",
        "sweep_every",
        "duration",
        "\"10s\"",
        "How often lapsed leases are dealt with. The next request deals with its own at once; this is for records that nobody asks about.",
    ),
    key(
        "upkeep",
        "reap_every",
        "duration",
        "\"60s\"",
        "How often expired records are removed. They count as absent at once, so this only frees space.",
    ),
    key(
        "upkeep",
        "keep_effects",
        "duration",
        "\"30d\"",
        "How long effects that are done or discarded stay once their record is gone: a customer's complaint and a month's closing ask for them. Others are never removed.",
    ),
    key(
        "upkeep",
        "keep_history",
        "duration",
        "\"400d\"",
        "How long the history of records that are gone is kept: a yearly audit, and a month to do it in. That of a record which is still there stays with it.",
    ),
    key(
        "upkeep",
        "reconcile_every",
        "duration",
        "\"5s\"",
        "How often the reconciler looks for unknown records whose next question is due. Short, for it is an index look-up; when a question is due says the record itself.",
    ),
    key(
        "upkeep",
        "duplicate_percent",
        "number",
        "50",
        "How many of a tenant's requests may be duplicates before the gauge `ibid_tenants_above_duplicate_rate` counts it. Healthy clients retry a few in a thousand; who sends every second request again has a broken retry loop or loses the answers.",
    ),
    key(
        "server",
        "max_connections",
        "number",
        "4096",
        "Connections open at once; the next one waits. Below the file descriptors a service usually gets, with as many for the upstream.",
    ),
    key(
        "server",
        "header_timeout",
        "duration",
        "\"15s\"",
        "How long a client may take from connecting to the end of its first head. A head is a packet or two; a client that only connects must not hold its place for long.",
    ),
    key(
        "server",
        "idle_timeout",
        "duration",
        "\"75s\"",
        "How long a connection is kept from one answer to the end of the next head. Longer than the 60 s idle time-out of load balancers, so that whoever sends requests is the one to close.",
    ),
    key(
        "server",
        "body_timeout",
        "duration",
        "\"30s\"",
        "How long a client may take to send a body. Enough for the largest one over a slow line, too short to hold connections for nothing.",
    ),
    key(
        "server",
        "drain_for",
        "duration",
        "\"25s\"",
        "How long requests may go on after a stop was asked for. Orchestrators kill after 30 s; five are left to close the store.",
    ),
];
