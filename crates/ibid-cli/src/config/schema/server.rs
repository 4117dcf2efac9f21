//! Keys of `[upkeep]`, `[cors]` and `[server]`.

use super::{ConfigKey, key};

pub(super) const KEYS: &[ConfigKey] = &[
    key(
        "upkeep",
        "run",
        "boolean",
        "Whether this gateway runs the upkeep of the store. Any number of nodes may, and one of them at a time sweeps and reaps; turn it off if other nodes or `ibid sweep`, `reap` and `reconcile` do it. Other nodes then also deliver the requests that this one accepted (202).",
    ),
    key(
        "upkeep",
        "sweep_every",
        "duration",
        "Interval at which lapsed leases are settled. A retry settles its own record at once; the sweeper settles records that no client retries.",
    ),
    key(
        "upkeep",
        "reap_every",
        "duration",
        "Interval at which expired records are removed. They count as absent at once, so this only frees space.",
    ),
    key(
        "upkeep",
        "keep_effects",
        "duration",
        "Time that done or discarded effects are kept after their record was removed: long enough for a customer's complaint and the monthly closing. Others are never removed.",
    ),
    key(
        "upkeep",
        "keep_history",
        "duration",
        "Time that the history of removed records is kept: a yearly audit, and a month to do it in. The history of an existing record stays with it.",
    ),
    key(
        "upkeep",
        "reconcile_every",
        "duration",
        "Interval at which the reconciler searches for unknown records whose next lookup is due. Short, because it is an index scan; the record itself has the time of its next lookup.",
    ),
    key(
        "upkeep",
        "duplicate_percent",
        "number",
        "Percentage of a tenant's requests that may be duplicates before the gauge `ibid_tenants_above_duplicate_rate` counts it. Healthy clients retry a few requests in a thousand; a client that repeats every second one has a broken retry loop or loses the responses.",
    ),
    key(
        "cors",
        "origins",
        "array of origins, or `[\"*\"]`",
        "Origins whose scripts may read the gateway's own responses: refusals, 202 and the pages under `/.ibid/`, also their preflights. None by default: you decide who may read them. Responses of your API keep their own CORS fields, and a replay repeats them for `*` or the same `Origin`. Leave this out if a proxy in front of the gateway adds CORS fields to every response.",
    ),
    key(
        "cors",
        "credentials",
        "boolean",
        "Whether these scripts may send cookies and read the response (`credentials: \"include\"`). Off: most APIs with idempotency keys use a token. Needs origins by name.",
    ),
    key(
        "cors",
        "max_age",
        "duration",
        "Time that a browser may cache the preflight of `/.ibid/…`. Short enough that a change reaches browsers within minutes, long enough that a page that polls sends one preflight.",
    ),
    key(
        "server",
        "max_connections",
        "number",
        "Client connections open at once. When all are in use, the one that has been idle longest is closed for the next; if none is idle, the next one waits. Below the number of file descriptors that a service usually gets, with room for connections to the upstream.",
    ),
    key(
        "server",
        "max_streams",
        "number",
        "Requests open at once on one HTTP/2 connection. RFC 9113 advises at least 100, and each may hold a body in memory, so not many more.",
    ),
    key(
        "server",
        "max_resets",
        "number",
        "Streams of one HTTP/2 connection that the client reset before the gateway accepted them, and streams that the gateway reset because of the client's errors; beyond either limit the connection is closed. A client that cancels requests does so a few times, not in bulk.",
    ),
    key(
        "server",
        "max_guarded",
        "number",
        "Guarded requests whose clients wait. The next one gets 503 `overloaded` and nothing is reserved. Twice the connections: HTTP/2 carries more than one request each.",
    ),
    key(
        "server",
        "max_guarded_per_connection",
        "number",
        "Guarded requests of one connection that still run, with or without their client: a run continues when its client leaves. The next one gets 503 `overloaded`. Twice `max_streams`, so that a client that gives up on some requests can send others.",
    ),
    key(
        "server",
        "max_passed",
        "number",
        "Unguarded requests at once, and connections to the upstream for them; both are separate from those of guarded requests. When all are in use, the request that has waited longest for its response head gets 504 and the next one takes its slot; if none waits for a head, the next one gets 503. A quarter of the connections, so that the rest stays for guarded requests.",
    ),
    key(
        "server",
        "max_upstream_connections",
        "number",
        "Connections to the upstream for guarded requests. A request that gets none within 5 s gets 503 `upstream-unavailable`, which proves that it was not sent. Enough for a run on every connection and as many that have lost their client.",
    ),
    key(
        "server",
        "max_buffered_bytes",
        "size",
        "Bodies of guarded requests and bytes of replies in memory at once. Beyond it, guarded requests get 503 `overloaded` before their body is read. The default holds some hundred bodies of the largest size, or many thousands of usual ones.",
    ),
    key(
        "server",
        "max_reply_bytes",
        "size",
        "Bytes of replies that wait for their clients to read, a part of `max_buffered_bytes`. Beyond it, the replies that have waited longest are cut off, and a replay that finds no room gets 503 `overloaded`. Half, so that slow clients leave room for request bodies.",
    ),
    key(
        "server",
        "header_timeout",
        "duration",
        "Longest time from connecting to the end of the first request head. A head is a packet or two; a client that only connects must not hold a connection for long.",
    ),
    key(
        "server",
        "idle_timeout",
        "duration",
        "Longest time from one response to the end of the next request head; an HTTP/2 connection without streams gets GOAWAY, whether or not it answers PING. Longer than the 60 s idle time-out of load balancers, so that the side that sends requests is the one to close.",
    ),
    key(
        "server",
        "body_timeout",
        "duration",
        "Longest time to send the body of a guarded request. Enough for the largest one over a slow line, too short to hold connections for nothing.",
    ),
    key(
        "server",
        "stall_timeout",
        "duration",
        "Longest time that a client may stop reading its response (less than 16 KiB read counts as stopped), or stop sending the body of an unguarded request before the response head. Then the stream is reset or the connection closed. A client on a poor line resumes within seconds; a quiet upstream and an upgraded connection are never stalled.",
    ),
    key(
        "server",
        "drain_for",
        "duration",
        "Longest time that requests may still run after a stop signal. Orchestrators kill after 30 s; five are left to close the store.",
    ),
];
