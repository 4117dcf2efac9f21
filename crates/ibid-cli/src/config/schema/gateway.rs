//! Keys of the gateway itself: the top level, `[upstream_tls]`, `[store]`, `[tenant]` and `[fingerprint]`.

use super::{ConfigKey, key};

pub(super) const KEYS: &[ConfigKey] = &[
    key(
        "",
        "upstream",
        "URL",
        "The API behind the gateway: an absolute `http://` or `https://` URL. Required, for nothing can be guessed. Also `--upstream`, `IBID_UPSTREAM`.",
    ),
    key(
        "",
        "listen",
        "address",
        "Where clients connect. Loopback until you say otherwise: a gateway that moves money should not be open by accident. Also `--listen`, `IBID_LISTEN`.",
    ),
    key(
        "",
        "admin_listen",
        "address",
        "Where operators connect. A listener of its own, so that no path of your API is taken and a firewall can tell them apart. Also `--admin-listen`, `IBID_ADMIN_LISTEN`.",
    ),
    key(
        "",
        "upstream_http2",
        "boolean",
        "Demand HTTP/2 of the upstream. Off: a plain upstream gets HTTP/1.1, because a server without HTTP/2 would refuse every request, and one with TLS gets HTTP/2 where it offers it (ALPN). On: a plain upstream gets HTTP/2 with prior knowledge, and one with TLS has to offer it. Also `--upstream-http2`, `IBID_UPSTREAM_HTTP2`.",
    ),
    key(
        "upstream_tls",
        "ca",
        "path",
        "PEM file with the authorities that may sign an `https` upstream's certificate, instead of the system's. For a private authority: only what it signed is trusted then. Read once, at start, like the other files here.",
    ),
    key(
        "upstream_tls",
        "cert",
        "path",
        "PEM file with the gateway's client certificate, for an upstream that demands one, and the chain behind it. Needs `key`.",
    ),
    key("upstream_tls", "key", "path", "PEM file with that certificate's private key, not encrypted."),
    key(
        "upstream_tls",
        "server_name",
        "host name or address",
        "The name that is asked for (SNI) and that the certificate must be for. Without it the host of `upstream`; needed where that is an address or an internal name. `Host` stays that of `upstream`.",
    ),
    key(
        "store",
        "url",
        "`sqlite:PATH`, `postgres://USER@HOST/DATABASE`, `memory:`",
        "Where records live. A file needs no server and survives a crash; PostgreSQL is for gateways on several machines; `memory:` is for tests. A PostgreSQL URL takes the parameters `connections_max=8`, `prepare=false` (for a pooler that hands each transaction to another session) and `accept_weak_durability=true` besides those of libpq; with `sslmode=require` or stricter, certificate and name are checked, against `sslrootcert=PATH` or the system's, and without it there is no TLS. Also `--store`, `IBID_STORE`.",
    ),
    key(
        "store",
        "begin_timeout",
        "duration",
        "How long a request waits for the store before it gets 503 and nothing is run. Clients wait 10 s and more, so there is time for their retry.",
    ),
    key(
        "store",
        "finish_wait",
        "duration",
        "How long an answer waits to become durable before it leaves with `Idempotency-Stored: false`. Longer than a store's fail-over usually takes, shorter than most clients' patience.",
    ),
    key(
        "store",
        "cache_bytes",
        "size",
        "Completed records kept in memory for replays; `0` keeps none. Some ten thousand answers of an ordinary API.",
    ),
    key(
        "store",
        "cache_ttl",
        "duration",
        "How long one is kept there. Most retries come within a minute, and forgetting a record is final everywhere after this time.",
    ),
    key(
        "store",
        "identity_valid_for",
        "duration",
        "How long a node acts on its last look at the store's identity, at least 1 s. It looks three times as often, and `ibid identity change` waits twice as long. The value that the identity was stored with counts for every node. Long enough that a look lost to a failover refuses nothing, short enough that a change ends within a minute.",
    ),
    key(
        "tenant",
        "from",
        "`header:NAME`, `authorization`, `none`",
        "Whose keys they are. Required: two clients may choose the same key, and without a tenant one would get the other's answer. Also `--tenant`, `IBID_TENANT`.",
    ),
    key(
        "tenant",
        "trusted",
        "array of networks or addresses",
        "Hops whose tenant header, `X-Forwarded-…` and `Forwarded` are believed; from others they are taken off. Loopback: a proxy on the same host authenticates, anyone else could claim to be anyone.",
    ),
    key(
        "fingerprint",
        "secrets",
        "array of strings",
        "What fingerprints are keyed with, newest first, at least 16 bytes each. Without any, one is made once and kept in the store: fine until the store's readers should not be able to guess bodies. Also `IBID_SECRETS`, comma-separated.",
    ),
];
