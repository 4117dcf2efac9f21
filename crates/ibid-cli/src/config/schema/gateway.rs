//! Keys of the gateway itself: the top level, `[upstream_tls]`, `[store]`, `[front]`, `[tenant]` and `[fingerprint]`.

use super::{ConfigKey, key};

pub(super) const KEYS: &[ConfigKey] = &[
    key(
        "",
        "upstream",
        "URL",
        "The API behind the gateway: an absolute `http://` or `https://` URL. Required, because it can't be guessed. Also `--upstream`, `IBID_UPSTREAM`.",
    ),
    key(
        "",
        "listen",
        "address",
        "The address that clients connect to. Loopback by default: a gateway that moves money should not be open by accident. Also `--listen`, `IBID_LISTEN`.",
    ),
    key(
        "",
        "admin_listen",
        "address",
        "The address that operators connect to. A separate listener, so that it takes no path of your API and a firewall can separate the two. Also `--admin-listen`, `IBID_ADMIN_LISTEN`.",
    ),
    key(
        "",
        "upstream_http2",
        "boolean",
        "Require HTTP/2 of the upstream. Off: a plain upstream gets HTTP/1.1, because a server without HTTP/2 would refuse every request, and one with TLS gets HTTP/2 if it offers it (ALPN). On: a plain upstream gets HTTP/2 with prior knowledge, and one with TLS has to offer it. Also `--upstream-http2`, `IBID_UPSTREAM_HTTP2`.",
    ),
    key(
        "upstream_tls",
        "ca",
        "path",
        "PEM file with the authorities that may sign an `https` upstream's certificate, instead of the system's. For a private authority: then only certificates that it signed are trusted. Read once, at start, like the other files here.",
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
        "The name that the gateway sends (SNI) and that the certificate must be for. Without it, the host of `upstream`; needed if that is an address or an internal name. `Host` stays that of `upstream`.",
    ),
    key(
        "store",
        "url",
        "`sqlite:PATH`, `postgres://USER@HOST/DATABASE`, `mysql://USER@HOST/DATABASE`, `dynamodb://TABLE`, `redis://HOST`, `memory:`",
        "The store of the records. A file needs no server and survives a crash; a server is for gateways on several machines; `memory:` is for tests. MySQL, DynamoDB and Redis need an `ibid` that was built with the feature of that name, or with `all-stores`; docs/stores has the parameters of each URL. A PostgreSQL URL takes the parameters `connections_max=8`, `prepare=false` (for a pooler that hands each transaction to another session) besides those of libpq; with `sslmode=require` or stricter, certificate and name are checked, against `sslrootcert=PATH` or the system's, and without it there is no TLS. Also `--store`, `IBID_STORE`.",
    ),
    key(
        "store",
        "durability",
        "`durable`, `weak`",
        "`durable` refuses at start a server that may lose a commit which it has acknowledged: its settings, or the kind of store, allow that. `weak` uses it all the same, and a request may then run twice after such a loss. In a URL: `durability=weak`.",
    ),
    key(
        "store",
        "begin_timeout",
        "duration",
        "Time that a request waits for its turn in the store before it gets 503 and nothing is executed. Once it was sent, the reply may take 250 ms longer. Clients wait 10 s and more, so there is time for their retry.",
    ),
    key(
        "store",
        "finish_wait",
        "duration",
        "Time that a response waits to become durable before it is sent with `Idempotency-Stored: false`. Longer than a store's failover usually takes, shorter than most clients wait.",
    ),
    key(
        "store",
        "cache_bytes",
        "size",
        "Bytes of completed records that are cached in memory for replays; `0` caches none. The default holds some ten thousand responses of an ordinary API.",
    ),
    key(
        "store",
        "cache_ttl",
        "duration",
        "Time that a record stays in that cache. Most retries come within a minute. Once an operator forgets a record, no node replays it after this time.",
    ),
    key(
        "store",
        "identity_valid_for",
        "duration",
        "Time that a node relies on its last read of the store's identity, at least 1 s. It reads three times as often, and `ibid identity change` waits twice as long. The value that was stored with the identity applies to every node. Long enough that a read lost to a failover refuses no request, short enough that a change ends within a minute.",
    ),
    key(
        "front",
        "url",
        "`redis://HOST:PORT/`, `rediss://…`",
        "A Redis server in front of the store, which all gateways share. It holds completed responses for `cache_ttl`, and takes replays off the store; it decides nothing, and its absence only costs time. When it is worth nothing: `docs/stores/redis-front.md`. Needs a program built with the feature `redis`. Also `IBID_FRONT`.",
    ),
    key(
        "front",
        "timeout",
        "duration",
        "Time that a request waits for one reply of that server before it asks the store; at most a quarter of `begin_timeout`. A reply takes a fraction of a millisecond within one network. Responses of more than 50 KiB for each millisecond are not shared.",
    ),
    key(
        "tenant",
        "from",
        "`header:NAME`, `authorization`, `none`",
        "The source of the tenant that owns a key. Required: two clients may choose the same key, and without a tenant one would get the other's response. Also `--tenant`, `IBID_TENANT`.",
    ),
    key(
        "tenant",
        "trusted",
        "array of networks or addresses",
        "Hops whose tenant header, `X-Forwarded-…` and `Forwarded` are trusted; from others they are removed. Loopback by default: a proxy on the same host authenticates, and any other client could claim to be any tenant.",
    ),
    key(
        "fingerprint",
        "secrets",
        "array of strings",
        "Secrets that key the fingerprints, newest first, at least 16 bytes each. Without any, one is generated once and stored in the store: fine unless readers of the store must not be able to guess bodies. Also `IBID_SECRETS`, comma-separated.",
    ),
];
