//! Keys of `[upkeep]`, `[cors]` and `[server]`.

use super::{ConfigKey, key};

pub(super) const KEYS: &[ConfigKey] = &[
    key(
        "upkeep",
        "run",
        "boolean",
        "Whether this gateway looks after the store. Any number may; turn it off where other nodes or `ibid sweep`, `reap` and `reconcile` do it. What is accepted to be run later is then delivered by others, too.",
    ),
    key(
        "upkeep",
        "sweep_every",
        "duration",
        "How often lapsed leases are dealt with. The next request deals with its own at once; this is for records that nobody asks about.",
    ),
    key(
        "upkeep",
        "reap_every",
        "duration",
        "How often expired records are removed. They count as absent at once, so this only frees space.",
    ),
    key(
        "upkeep",
        "keep_effects",
        "duration",
        "How long effects that are done or discarded stay once their record is gone: a customer's complaint and a month's closing ask for them. Others are never removed.",
    ),
    key(
        "upkeep",
        "keep_history",
        "duration",
        "How long the history of records that are gone is kept: a yearly audit, and a month to do it in. That of a record which is still there stays with it.",
    ),
    key(
        "upkeep",
        "reconcile_every",
        "duration",
        "How often the reconciler looks for unknown records whose next question is due. Short, for it is an index look-up; when a question is due says the record itself.",
    ),
    key(
        "upkeep",
        "duplicate_percent",
        "number",
        "How many of a tenant's requests may be duplicates before the gauge `ibid_tenants_above_duplicate_rate` counts it. Healthy clients retry a few in a thousand; who sends every second request again has a broken retry loop or loses the answers.",
    ),
    key(
        "cors",
        "origins",
        "array of origins, or `[\"*\"]`",
        "Origins whose scripts may read what the gateway answers itself: refusals, 202 and the pages under `/.ibid/`, also their preflights. None: who may read is for you to say. What your API answers keeps its own CORS fields, and a replay repeats them for `*` or the same `Origin`. Leave it out where a proxy before the gateway adds CORS fields to every answer.",
    ),
    key(
        "cors",
        "credentials",
        "boolean",
        "Whether these scripts may send cookies and read the answer (`credentials: \"include\"`). Off: most APIs that take a key take a token with it. Needs origins by name.",
    ),
    key(
        "cors",
        "max_age",
        "duration",
        "How long a browser may remember the answer to a preflight of `/.ibid/…`. A change reaches browsers within minutes, and a page that polls asks once.",
    ),
    key(
        "server",
        "max_connections",
        "number",
        "Client connections open at once. When all are taken, the one that has been idle longest is closed for the next; if none is idle, the next one waits. Below the file descriptors a service usually gets, with room for the upstream's.",
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
        "Streams of one HTTP/2 connection that their client has reset before they were taken up, and streams that had to be reset for an error of the client; beyond either the connection is closed. A client that changes its mind does so a few times, not in bulk.",
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
        "Guarded requests that one connection has caused and that still run, with or without their client: a run goes on when its client leaves. The next one gets 503 `overloaded`. Twice `max_streams`, so that a client which gives up on some requests can go on with others.",
    ),
    key(
        "server",
        "max_passed",
        "number",
        "Requests that pass unguarded, apart from guarded ones, and connections to the upstream for them. When all are taken, the one that has waited longest for the head of its answer gets 504 and the next one takes its place; if none waits for a head, the next one gets 503. A quarter of the connections, so that the rest stays for guarded requests.",
    ),
    key(
        "server",
        "max_upstream_connections",
        "number",
        "Connections to the upstream for guarded requests. A request that gets none within 5 s is answered 503 `upstream-unavailable`, proven unsent. Enough for a run on every connection and as many that have lost their client.",
    ),
    key(
        "server",
        "max_buffered_bytes",
        "size",
        "Bodies of guarded requests and bytes of replies in memory at once. Beyond it guarded requests get 503 `overloaded` before their body is read. Some hundred bodies of the largest size, many thousands of usual ones.",
    ),
    key(
        "server",
        "max_reply_bytes",
        "size",
        "Bytes of replies that wait for their readers, a part of `max_buffered_bytes`. Beyond it the replies that wait longest are cut off, and a replay that finds no room gets 503 `overloaded`. Half, so that slow readers leave room for request bodies.",
    ),
    key(
        "server",
        "header_timeout",
        "duration",
        "How long a client may take from connecting to the end of its first head. A head is a packet or two; a client that only connects must not hold its place for long.",
    ),
    key(
        "server",
        "idle_timeout",
        "duration",
        "How long a connection is kept from one answer to the end of the next head; an HTTP/2 connection without streams gets GOAWAY, whether or not it answers PING. Longer than the 60 s idle time-out of load balancers, so that whoever sends requests is the one to close.",
    ),
    key(
        "server",
        "body_timeout",
        "duration",
        "How long a client may take to send the body of a guarded request. Enough for the largest one over a slow line, too short to hold connections for nothing.",
    ),
    key(
        "server",
        "stall_timeout",
        "duration",
        "How long a client may stop reading its answer (less than 16 KiB read counts as stopped), or stop sending the body of an unguarded request before the answer's head. Then the stream is reset or the connection closed. A client on a poor line resumes within seconds; a quiet upstream and an upgraded connection are never stalled.",
    ),
    key(
        "server",
        "drain_for",
        "duration",
        "How long requests may go on after a stop was asked for. Orchestrators kill after 30 s; five are left to close the store.",
    ),
];
