//! Errors of configurations: each names its file, line and key.

use super::*;

#[test]
fn every_error_names_file_line_and_key() {
    for (text, message) in ERRORS {
        assert_eq!(refusal(text), *message, "{text}");
    }
}

#[test]
fn all_errors_are_named_at_once_in_the_order_of_their_lines() {
    let all = failures_of(
        "[[route]]\nmatch = \"PSOT /x\"\nguards = \"off\"\n[defaults]\nwait = \"soon\"\nlease = 1\n",
    );
    let lines: Vec<&str> = all.iter().map(|failure| failure.message.split(": ").next().unwrap()).collect();
    assert_eq!(lines, ["ibid.toml:5", "ibid.toml:6", "ibid.toml:8", "ibid.toml:9"]);
}

#[test]
fn a_rule_of_the_defaults_that_can_not_be_kept_is_named_once() {
    let all = failures_of(
        "[defaults]\nretention = \"1s\"\n[[route]]\nmatch = \"POST /x\"\n[[route]]\nmatch = \"POST /y\"",
    );
    assert_eq!(all.len(), 1, "{all:#?}");
}

#[test]
fn broken_toml_is_named_with_its_line() {
    let failures = read("upstream = \"http://a\n").unwrap_err();
    assert!(failures.all()[0].message.starts_with("ibid.toml:1: "), "{failures}");
    let failures = read("listen = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:2\"\n").unwrap_err();
    assert!(failures.all()[0].message.starts_with("ibid.toml:2: duplicate key"), "{failures}");
}

#[test]
fn no_message_repeats_a_password_or_a_secret() {
    let text =
        "[store]\nurl = \"mysql://ibid:hunter2@db\"\n[fingerprint]\nsecrets = [\"hunter2\", \"hunter2\"]\n";
    let all = failures_of(text);
    assert!(all.len() >= 3 && !format!("{all:?}").contains("hunter2"), "{all:?}");
}

/// Configurations after [`BASE`], and the message of each.
const ERRORS: &[(&str, &str)] = &[
    ("[defaults]\nretenton = \"1d\"", "ibid.toml:5: `retenton` is not a key of `[defaults]`"),
    ("[defaults]\nlease = \"0s\"", "ibid.toml:5: `lease` must be longer than zero"),
    ("[store]\nidentity_valid_for = \"999ms\"", "ibid.toml:5: `identity_valid_for` must be at least 1s"),
    ("[defaults]\nlease = \"-1s\"", "ibid.toml:5: `lease` must not be negative"),
    ("[defaults]\nretention = \"30s\"", "ibid.toml:5: `retention` must not be shorter than the lease"),
    (
        "[defaults]\nlease = \"3d\"\nmax_run = \"4d\"",
        "ibid.toml:5: `retention` must not be shorter than the lease",
    ),
    (
        "[defaults]\nmax_attempts = 0",
        "ibid.toml:5: `max_attempts` must be a whole number from 1 to 4294967295",
    ),
    (
        "[defaults]\nmax_request_body = \"1GiB\"",
        "ibid.toml:5: `max_request_body` must be at most 256MiB: bodies are held in memory",
    ),
    (
        "[defaults]\nfree_on = [200]",
        "ibid.toml:5: `free_on` `200` is not an error status: a success is never free",
    ),
    ("[defaults]\nfree_on = [42]", "ibid.toml:5: `free_on` must hold HTTP statuses only, from 100 to 599"),
    ("[defaults]\nfree_on = [429]\nstore_on = [429]", "ibid.toml:6: `store_on` `429` is in `free_on`, too"),
    (
        "[defaults]\nfree_on = [429]\n[[route]]\nmatch = \"POST /x\"\nstore_on = [429]",
        "ibid.toml:8: `store_on` `429` is in `free_on`, too",
    ),
    (
        "[defaults]\nstore_on = [503]",
        "ibid.toml:5: `store_on` `503` is not on the free list: 401, 403, 409, 423, 425, 429, 501",
    ),
    ("[defaults]\nunknown_retention = \"0s\"", "ibid.toml:5: `unknown_retention` must be longer than zero"),
    (
        "[defaults]\nunknown_retention = \"10m\"",
        "ibid.toml:5: `unknown_retention` must be longer than any run and its reconciliation can take: max_run, lease, upstream_timeout and linger, and attempts × settle",
    ),
    (
        "[defaults]\nbehind = \"enovy\"",
        "ibid.toml:5: `behind` must be \"nginx\" or \"haproxy\" or \"envoy\" or \"apache\" or \"varnish\", not \"enovy\"",
    ),
    ("[defaults]\nnot_executed_when = [503]", "ibid.toml:5: `not_executed_when` must hold tables only"),
    (
        "[defaults]\nnot_executed_when = \"UF\"",
        "ibid.toml:5: `not_executed_when` must be a table or an array of tables",
    ),
    (
        "[defaults]\nnot_executed_when = { status = [503], header = \"x-a\" }",
        "ibid.toml:5: `not_executed_when` needs `in`",
    ),
    (
        "[defaults]\nnot_executed_when = { status = [503], header = \"x-a\", in = [\"a\"], not = 1 }",
        "ibid.toml:5: `not` is not a key of `[not_executed_when]`",
    ),
    (
        "[defaults]\nnot_executed_when = { status = [201], header = \"x-a\", in = [\"a\"] }",
        "ibid.toml:5: `not_executed_when` names `201`, which is not an error status",
    ),
    (
        "[defaults]\nnot_executed_when = { status = [503], header = \"x a\", in = [\"a\"] }",
        "ibid.toml:5: `not_executed_when` names `x a`, which is not a header name",
    ),
    (
        "[defaults]\nafter_expiry = \"refuse\"",
        "ibid.toml:5: `after_expiry` `refuse` needs a tombstone: without one nothing is left to refuse by",
    ),
    (
        "[defaults]\ninclude = [\"amount\"]",
        "ibid.toml:5: `include`: a JSON pointer begins with `/`, this one does not: `amount`",
    ),
    (
        "[defaults]\nanswer = \"later\"",
        "ibid.toml:5: `answer` must be \"sync\" or \"async\" or \"prefer\", not \"later\"",
    ),
    (
        "[defaults]\non_lapse = \"resume\"",
        "ibid.toml:5: `on_lapse = \"resume\"` is not available in this release",
    ),
    (
        "[defaults]\nprofile = \"strip\"",
        "ibid.toml:5: `profile` must be \"ietf\" or \"stripe\" or \"repeatability\", not \"strip\"",
    ),
    ("[limits]\nlive_keys = 1", "ibid.toml:4: `[limits]` is not available in this release"),
    (
        "[server]\nmax_connections = 0",
        "ibid.toml:5: `max_connections` must be a whole number from 1 to 4294967295",
    ),
    (
        "[server]\nmax_reply_bytes = \"2MiB\"\nmax_buffered_bytes = \"1MiB\"",
        "ibid.toml:6: `max_reply_bytes` is larger than `max_buffered_bytes`, which counts replies too",
    ),
    (
        "[server]\nmax_reply_bytes = 1\nmax_buffered_bytes = \"1023KiB\"",
        "ibid.toml:6: `max_buffered_bytes` is smaller than `max_request_body`: the largest body would never be read",
    ),
    (
        "[server]\nmax_guarded_per_connection = 127",
        "ibid.toml:5: `max_guarded_per_connection` is smaller than `max_streams`: offered streams would be refused",
    ),
    ("[server]\nmax_passed = 0", "ibid.toml:5: `max_passed` must be a whole number from 1 to 4294967295"),
    ("[server]\nstall_timeout = \"0s\"", "ibid.toml:5: `stall_timeout` must be longer than zero"),
    ("[fingerprint]\nsecrets = [\"hunter2\"]", "ibid.toml:5: `secrets`: secret 1 is shorter than 16 bytes"),
    ("trusted = [\"localhost\"]", "ibid.toml:4: `trusted` holds `localhost`, which is no network or address"),
    (
        "[[route]]\nretention = \"48h\"",
        "ibid.toml:4: `match` is missing: a route must say which requests it is for",
    ),
    (
        "[[route]]\n\nmatch = \"GET /x\"",
        "ibid.toml:6: `match` names `GET`, which is never guarded: it changes nothing",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\npreset = \"payment\"",
        "ibid.toml:6: `preset` is \"payment\", and there is no preset of that name",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\nretention = \"5s\"",
        "ibid.toml:6: `retention` must not be shorter than the lease",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\npreset = \"payments\"\ntombstone = \"0s\"",
        "ibid.toml:7: `after_expiry` `refuse` needs a tombstone: without one nothing is left to refuse by",
    ),
    ("[route]\nmatch = \"POST /x\"", "ibid.toml:4: `route` must be an array of tables: write `[[route]]`"),
    ("[unheard]\nof = 1", "ibid.toml:4: `unheard` is not a key of the top level"),
    (
        "[defaults]\nwait = 5",
        "ibid.toml:5: `wait` must be a duration such as \"250ms\", \"5s\", \"15m\", \"24h\" or \"30d\"",
    ),
    ("[defaults]\nkey = true", "ibid.toml:5: `key` must be \"required\" or \"optional\""),
    ("[defaults]\nmax_request_age = \"0s\"", "ibid.toml:5: `max_request_age` must be longer than zero"),
    (
        "[defaults]\nmax_request_age = \"25h\"",
        "ibid.toml:5: `max_request_age` must not be longer than the key is remembered (retention, and the \
         tombstone with `after_expiry = \"refuse\"`): an older request could run a second time",
    ),
    ("[defaults]\nfirst_sent = \"a b\"", "ibid.toml:5: `first_sent` is `a b`, which is not a header name"),
    (
        "[defaults]\nrepeatable = false",
        "ibid.toml:5: `repeatable = false` in `[defaults]` would exempt every request",
    ),
    ("[defaults]\nkey_from = \"query:k\"", "ibid.toml:5: `key_from`: `query:k` is no place for a key"),
    ("[defaults]\nkey_from = []", "ibid.toml:5: `key_from`: there must be at least one place for the key"),
    ("[defaults]\nkey_from = 7", "ibid.toml:5: `key_from` must be a string or an array of strings"),
    ("[defaults]\nkey_from = [7]", "ibid.toml:5: `key_from` must hold strings only"),
    (
        "[defaults]\nkey_from = \"header:Cookie\"",
        "ibid.toml:5: `key_from`: `cookie` can't carry the key: the field means something else",
    ),
    (
        "[[route]]\nmatch = \"POST /x\"\nkey_from = [\"paypal\", \"header:PayPal-Request-Id\"]",
        "ibid.toml:6: `key_from`: `header:paypal-request-id` is there twice",
    ),
    (
        "[defaults]\nkey_from = \"header:X-Tenant-Id\"",
        "`x-tenant-id` can't carry both the tenant and the key",
    ),
];
