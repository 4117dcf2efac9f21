//! Tests of configurations that are accepted, and of those that are refused, with their lines.

use super::*;
use ibid_core::fingerprint::{BodyRule, Pointer, Recipe};
use ibid_core::policy::{
    AfterExpiry, InFlight, KeyRule, OnLapse, OnServerError, Profile, Question, Reconcile,
};
use ibid_core::proof::{Hop, NotExecutedWhen};
use ibid_core::scope::ScopeRule;
use ibid_core::store::Tiers;

mod answers;
mod errors;
mod front;
mod stores;

/// A minimal configuration that a gateway can start with.
const BASE: &str = "upstream = \"http://127.0.0.1:3000\"\n[tenant]\nfrom = \"header:x-tenant-id\"\n";

/// Every key of the contract, with a value that is not its default.
const EXAMPLE: &str = r#"
trusted = ["127.0.0.0/8", "::1", "10.0.0.7"]
[store]
url = "sqlite:/var/lib/ibid/ibid.db"
[defaults]
profile = "ietf"
key = "optional"
scope = "tenant"
in_flight = "conflict"
wait = "250ms"
answer = "sync"
lease = "30s"
max_run = "5m"
retention = "48h"
tombstone = "0s"
after_expiry = "execute"
on_lapse = "fail"
on_server_error = "retry"
max_attempts = 3
pending_deadline = "2h"
upstream_timeout = "10s"
linger = "0s"
max_request_body = "512KiB"
max_response_body = 2048
response_version = 7
free_on = [503]
store_on = [429]
unknown_retention = "400d"
behind = "haproxy"
not_executed_when = { status = [502], header = "X-Sent", in = ["no"] }
strict_key = true
fingerprint_headers = ["X-Amount"]
include = ["/amount", "/to"]
exclude = ["/sent_at"]
body = "raw"
[[route]]
match = "POST /payments"
preset = "payments"
[route.reconcile]
request = "GET /payments/by-key/{key}"
headers = { "x-tenant-id" = "{tenant}" }
executed = [200]
not_executed = [404]
settle = "60s"
attempts = 4
status = 201
[[route]]
match = "POST,PUT /orders/{id}"
retention = "24h"
include = []
body = "auto"
[upkeep]
run = false
sweep_every = "1s"
reap_every = "2s"
keep_effects = "45d"
keep_history = "700d"
reconcile_every = "3s"
[fingerprint]
secrets = ["0123456789abcdef0123456789abcdef"]
"#;

fn read(text: &str) -> Result<Config, Failures> {
    Config::read(&GatewayArgs::default(), &EnvVars::default(), "ibid.toml", text)
}

/// Reads a configuration of [`BASE`], which has three lines, and this text.
fn more(text: &str) -> Config {
    read(&format!("{BASE}{text}")).unwrap_or_else(|failures| panic!("{failures}"))
}

fn failures_of(text: &str) -> Vec<Failure> {
    read(&format!("{BASE}{text}")).expect_err("this can't be kept").all().to_vec()
}

/// Returns the only message for a configuration of [`BASE`] and this text.
fn refusal(text: &str) -> String {
    let all = failures_of(text);
    assert_eq!(all.len(), 1, "{all:#?}");
    all[0].message.clone()
}

#[test]
fn the_example_of_the_contract_is_read_key_by_key() {
    let config = more(EXAMPLE);
    assert_eq!(config.store, StoreUrl::Sqlite("/var/lib/ibid/ibid.db".into()));
    assert_eq!(config.tenant.trusted.len(), 3);
    let policy = &config.defaults;
    assert_eq!(
        (policy.key, policy.scope, policy.in_flight),
        (KeyRule::Optional, ScopeRule::Tenant, InFlight::Conflict)
    );
    assert_eq!((policy.wait, policy.lease), (Duration::from_millis(250), Duration::from_secs(30)));
    assert_eq!((policy.on_lapse, policy.on_server_error), (OnLapse::Fail, OnServerError::Retry));
    assert_eq!((policy.max_request_body, policy.max_response_body), (512 << 10, 2048));
    assert_eq!(
        (policy.free_on.as_slice(), policy.response_version, policy.strict_key),
        (&[503][..], 7, true)
    );
    assert_eq!((policy.store_on.as_slice(), policy.behind), (&[429][..], Some(Hop::Haproxy)));
    let rule = NotExecutedWhen { status: vec![502], header: "x-sent".into(), values: vec!["no".into()] };
    assert_eq!(policy.not_executed_when, [rule]);
    assert_eq!(policy.unknown_retention, Some(400 * DAY));
    assert_eq!(policy.linger, Duration::ZERO);
    let pointer = |text: &str| Pointer::parse(text).unwrap();
    let rest = Recipe::default().with_header("x-amount").with_exclude(pointer("/sent_at"));
    let whole =
        rest.clone().with_include(pointer("/amount")).with_include(pointer("/to")).with_body(BodyRule::Raw);
    assert_eq!(policy.recipe, whole);
    assert_eq!(config.routes[1].policy.recipe, rest, "a key replaces what `[defaults]` says");
    let payments = &config.routes[0];
    assert_eq!(payments.policy.retention, 30 * DAY);
    assert_eq!(payments.policy.after_expiry, AfterExpiry::Refuse);
    assert_eq!(
        payments.policy.wait,
        Duration::from_millis(250),
        "`[defaults]` holds where the preset is silent"
    );
    let question = Question {
        path: "/payments/by-key/{key}".into(),
        headers: vec![("x-tenant-id".into(), "{tenant}".into())],
        executed: vec![200],
        not_executed: vec![404],
        status: Some(201),
    };
    let route = Some("/payments".to_owned());
    let reconcile = Reconcile::new(Duration::from_secs(60), 4).with(|reconcile| {
        reconcile.route = route;
        reconcile.question = Some(question);
    });
    assert_eq!(payments.policy.reconcile, Some(reconcile));
    assert_eq!(config.routes[1].methods, [Method::POST, Method::PUT]);
    assert_eq!(config.routes[1].policy.retention, DAY);
    assert_eq!(config.upkeep.sweep_every, Duration::from_secs(1));
    assert_eq!((config.upkeep.keep.effects, config.upkeep.keep.history), (45 * DAY, 700 * DAY));
    assert_eq!(config.secrets, [b"0123456789abcdef0123456789abcdef".to_vec()]);
}

#[test]
fn nothing_but_upstream_and_tenant_is_needed() {
    let config = more("");
    assert_eq!(config.defaults, Policy::default());
    assert_eq!(config.listen, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(config.admin_listen, "127.0.0.1:8081".parse().unwrap());
    assert_eq!(config.store, StoreUrl::default());
    assert!(config.routes.is_empty() && config.secrets.is_empty() && !config.upstream_http2);
}

#[test]
fn flags_win_over_the_file() {
    let flags = GatewayArgs {
        upstream: Some("http://10.0.0.1:9".into()),
        tenant: Some("none".into()),
        key: Some("optional".into()),
        listen: Some("0.0.0.0:1".into()),
        admin_listen: Some(String::new()),
        store: Some("memory:".into()),
        config: None,
        upstream_http2: Some(false),
    };
    let text =
        "listen = \"127.0.0.1:2\"\nadmin_listen = \"127.0.0.1:3\"\nupstream_http2 = true\n".to_owned() + BASE;
    let variables =
        EnvVars { secrets: Some("a123456789abcdef, b123456789abcdef".into()), ..EnvVars::default() };
    let config = Config::read(&flags, &variables, "ibid.toml", &text).unwrap();
    assert_eq!(config.upstream, "http://10.0.0.1:9");
    assert!(config.tenant.is_none());
    assert_eq!(config.defaults.key, KeyRule::Optional);
    assert_eq!(config.listen, "0.0.0.0:1".parse().unwrap());
    assert_eq!(config.admin_listen, "127.0.0.1:3".parse().unwrap(), "an empty variable says nothing");
    assert_eq!(config.store, StoreUrl::Memory);
    assert!(!config.upstream_http2);
    assert_eq!(config.secrets, [b"a123456789abcdef".to_vec(), b"b123456789abcdef".to_vec()]);
}

#[test]
fn without_tenant_or_upstream_it_says_why_they_are_needed() {
    let all = read("").unwrap_err();
    let text = all.to_string();
    assert_eq!(all.all().len(), 2, "{text}");
    assert!(text.contains("the gateway needs an upstream"), "{text}");
    assert!(text.contains("two clients may choose the same key"), "{text}");
    assert!(text.contains("--tenant header:x-tenant-id"), "{text}");
}

#[test]
fn several_rules_of_proof_may_stand_in_an_array() {
    let rules = "[[defaults.not_executed_when]]\nstatus = [503]\nheader = \"x-a\"\nin = [\"1\"]\n\
                 [[defaults.not_executed_when]]\nstatus = [502, 504]\nheader = \"x-b\"\nin = [\"2\", \"3\"]\n\
                 [[route]]\nmatch = \"POST /x\"\nnot_executed_when = []\n";
    let config = more(rules);
    let headers: Vec<_> = config.defaults.not_executed_when.iter().map(|rule| rule.header.as_str()).collect();
    assert_eq!(headers, ["x-a", "x-b"]);
    assert!(
        config.routes[0].policy.not_executed_when.is_empty(),
        "a route's own list replaces the one above"
    );
}

#[test]
fn varnish_as_next_hop_is_warned_of_where_it_is_named() {
    let warned = |text: &str| {
        let warnings = more(text).warnings;
        warnings.into_iter().filter(|warning| warning.contains("Varnish")).collect::<Vec<_>>()
    };
    let defaults = warned("[defaults]\nbehind = \"varnish\"\n[[route]]\nmatch = \"POST /x\"\n");
    assert_eq!(defaults.len(), 1, "{defaults:?}");
    assert!(defaults[0].starts_with("ibid.toml:5: `[defaults]`: Varnish sends"), "{defaults:?}");
    let route = warned("[[route]]\nmatch = \"POST /x\"\nbehind = \"varnish\"\n");
    assert!(route[0].starts_with("ibid.toml:6: `POST /x`: Varnish sends"), "{route:?}");
    assert!(warned("[defaults]\nbehind = \"envoy\"\n").is_empty());
}

#[test]
fn hints_name_what_was_probably_meant() {
    let hint = |text: &str| failures_of(text)[0].hint.clone().unwrap_or_default();
    assert_eq!(hint("[defaults]\nretenton = \"1d\""), "did you mean `retention`?");
    assert_eq!(hint("[defaults]\nprofile = \"strip\""), "did you mean \"stripe\"?");
    assert_eq!(hint("[defaults]\npreset = \"payments\""), "`preset` is a key of `[[route]]`");
    assert_eq!(hint("retention = \"1d\""), "`retention` is a key of `[defaults]`");
    assert_eq!(hint("[defaults]\nwait = 5"), "the default is \"5s\"");
    assert_eq!(hint("[[routes]]\nmatch = \"POST /x\""), "did you mean `route`?");
    assert_eq!(hint("[defaults]\nkey_from = \"sqaure\""), "did you mean \"square\"?");
    assert_eq!(hint("[defaults]\nkey_from = \"body:k\""), "write for example \"body:/idempotency_key\"");
}

#[test]
fn the_nearest_key_setting_wins() {
    let config = more(
        "[defaults]\nkey_from = [\"header:X-Key\", \"square\"]\n[[route]]\nmatch = \"POST /a\"\nkey_from = \"aws\"\n\
         [[route]]\nmatch = \"POST /b\"\npreset = \"payments\"\n",
    );
    let places = |policy: &Policy| {
        policy.key_from.sources().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(places(&config.defaults), "header:x-key body:/idempotency_key");
    assert_eq!(
        places(&config.routes[0].policy),
        "body:/clientToken body:/ClientToken body:/clientRequestToken body:/ClientRequestToken"
    );
    assert_eq!(places(&config.routes[1].policy), "header:x-key body:/idempotency_key");
    assert_eq!(places(&more("").defaults), "header:idempotency-key");
}

#[test]
fn the_profile_repeatability_brings_its_own_rules() {
    let config = more(
        "[defaults]\nprofile = \"repeatability\"\nrepeatable = false\n[[route]]\nmatch = \"POST /a\"\nrepeatable = true\n\
         max_request_age = \"5m\"\nfirst_sent = \"X-First-Sent\"\n[[route]]\nmatch = \"POST /b\"\nprofile = \"ietf\"\n",
    );
    assert_eq!(config.defaults, Policy::repeatability().with(|policy| policy.repeatable = false));
    let first = Policy::repeatability().with(|policy| {
        policy.max_request_age = Some(Duration::from_secs(300));
        policy.first_sent = Some("x-first-sent".into());
    });
    assert_eq!((&config.routes[0].policy, config.routes[0].guard), (&first, true));
    assert!(!config.routes[1].guard, "not repeatable, and no profile that could say so: exempt");
    let preset = more("[[route]]\nmatch = \"POST /a\"\npreset = \"repeatability\"\n");
    assert_eq!(preset.routes[0].policy, Policy::repeatability());
}

#[test]
fn the_key_rule_of_the_command_line_wins_over_the_defaults_only() {
    let flags = |word: &str| GatewayArgs { key: Some(word.into()), ..GatewayArgs::default() };
    let text =
        format!("{BASE}[defaults]\nkey = \"required\"\n[[route]]\nmatch = \"POST /x\"\nkey = \"required\"\n");
    let read = |word: &str| Config::read(&flags(word), &EnvVars::default(), "ibid.toml", &text);
    let config = read("optional").unwrap();
    assert_eq!((config.defaults.key, config.routes[0].policy.key), (KeyRule::Optional, KeyRule::Required));
    assert_eq!(read("").unwrap().defaults.key, KeyRule::Required, "an empty variable says nothing");
    let refusal_text = read("maybe").unwrap_err().to_string();
    assert!(
        refusal_text.contains("`--key` (or `IBID_KEY`) must be `required` or `optional`"),
        "{refusal_text}"
    );
}

#[test]
fn routes_that_take_the_same_requests_are_named_with_both_lines() {
    let two = |a: &str, b: &str| format!("[[route]]\nmatch = \"{a}\"\n[[route]]\nmatch = \"{b}\"\n");
    let message = refusal(&two("POST /a/{x}", "PUT,POST /a/{y}"));
    assert_eq!(
        message,
        "ibid.toml:7: `PUT,POST /a/{y}` takes the same POST requests as `POST /a/{x}` on line 5"
    );
    assert!(refusal(&two("POST /a", "POST /a")).ends_with("on line 5"));
    assert_eq!(more(&two("POST /a/{x}", "PUT /a/{y}")).routes.len(), 2);
    assert_eq!(more(&two("POST /a/{x}", "POST /a/b")).routes.len(), 2);
    assert_eq!(more(&two("POST /a/{x}", "POST /{*rest}")).routes.len(), 2);
}

#[test]
fn how_a_path_is_read_is_set_for_all_and_for_a_route() {
    let route = |keys: &str| format!("[[route]]\nmatch = \"POST /a\"\n{keys}");
    for (text, defaults, on_route) in [
        (route(""), PathRule::Strict, PathRule::Strict),
        (route("path = \"as-sent\""), PathRule::Strict, PathRule::AsSent),
        (format!("[defaults]\npath = \"as-sent\"\n{}", route("")), PathRule::AsSent, PathRule::AsSent),
        (
            format!("[defaults]\npath = \"as-sent\"\n{}", route("path = \"strict\"")),
            PathRule::AsSent,
            PathRule::Strict,
        ),
    ] {
        let config = more(&text);
        assert_eq!((config.defaults.path, config.routes[0].policy.path), (defaults, on_route), "{text}");
    }
    for (text, message) in [
        ("[defaults]\npath = \"loose\"", "ibid.toml:5: `path`"),
        ("[[route]]\nmatch = \"POST /a//b\"", "ibid.toml:5: `match` has the path `/a//b`, which is refused"),
        (
            "[[route]]\nmatch = \"PUT /a/../b\"",
            "ibid.toml:5: `match` has the path `/a/../b`, which is refused",
        ),
        ("[[route]]\nmatch = \"POST /a;b\"\nguard = \"off\"", "ibid.toml:5: `match` has the path `/a;b`"),
    ] {
        assert!(refusal(text).starts_with(message), "{text}: {}", refusal(text));
    }
    assert_eq!(more("[[route]]\nmatch = \"POST /a//b\"\npath = \"as-sent\"").routes.len(), 1);
    assert_eq!(more("[[route]]\nmatch = \"POST /a;b\"").routes.len(), 1, "guarded");
}

#[test]
fn a_reconcile_rule_must_carry_the_tenant_unless_there_is_one() {
    let rule = "[[route]]\nmatch = \"POST /p/{id}\"\n[route.reconcile]\nrequest = \"GET /p/{id}/{key}\"\n";
    assert!(
        refusal(rule).starts_with("ibid.toml:6: the reconcile rule does not carry {tenant}"),
        "{}",
        refusal(rule)
    );
    let one = format!("upstream = \"http://a\"\n[tenant]\nfrom = \"none\"\n{rule}");
    assert!(read(&one).is_ok());
    more(&rule.replace("{key}", "{key}?t={tenant}"));
}

#[test]
fn a_reconcile_rule_is_checked() {
    let rule = |lines: &str| {
        format!(
            "[[route]]\nmatch = \"POST /p\"\n[route.reconcile]\nheaders = {{ t = \"{{tenant}}\" }}\n{lines}\n"
        )
    };
    let asks = "request = \"GET /p/{key}\"\n";
    assert!(refusal(&rule("")).contains("`request` is missing"));
    assert!(refusal(&rule("request = \"POST /p/{key}\"")).contains("must be GET and a path"));
    assert!(refusal(&rule("request = \"GET /p/{id}\"")).contains("`{id}` is nothing that can be filled in"));
    assert!(
        refusal(&rule(&format!("{asks}settle = \"59s\"")))
            .contains("`settle` must be at least 2 × upstream_timeout")
    );
    assert!(refusal(&rule(&format!("{asks}attempts = 0"))).contains("`attempts`"));
    for path in ["/p/{key", "/p /{key}", "/p/{key}#x"] {
        let asks = format!("request = \"GET {path}\"");
        assert!(refusal(&rule(&asks)).contains("no path of a URL"), "{path}");
    }
    for (line, problem) in [
        ("\"a b\" = \"x\"", "not a header name"),
        ("content-length = \"1\"", "the gateway sets by itself"),
        ("x = \"a\\nb\"", "value can't be sent"),
    ] {
        let lines = format!(
            "[[route]]\nmatch = \"POST /p\"\n[route.reconcile]\n{asks}headers = {{ t = \"{{tenant}}\", {line} }}\n"
        );
        assert!(refusal(&lines).contains(problem), "{line}: {}", refusal(&lines));
    }
    assert!(refusal(&rule(&format!("{asks}not_executed = [404, 200]"))).contains("`200` can't mean both"));
    assert!(
        refusal(&rule(&format!("{asks}every = \"5s\"")))
            .contains("`every` is not a key of `[route.reconcile]`")
    );
    let bound = rule(asks).replace("[route.rec", "bind = \"principal\"\n[route.rec");
    assert!(refusal(&bound).contains("can't say which principal's"), "{}", refusal(&bound));
    // The default grows with a longer time-out.
    let slow = format!("[defaults]\nupstream_timeout = \"2m\"\n{}", rule(asks));
    assert_eq!(more(&slow).routes[0].policy.reconcile.as_ref().unwrap().settle, Duration::from_secs(240));
}

#[test]
fn the_profile_of_a_route_brings_its_own_defaults() {
    let config = more(
        "[defaults]\nprofile = \"stripe\"\nwait = \"1s\"\n[[route]]\nmatch = \"POST /x\"\nprofile = \"ietf\"\n\
         [[route]]\nmatch = \"POST /y\"\non_server_error = \"unknown\"\n",
    );
    assert_eq!(config.defaults, Policy::stripe().with(|policy| policy.wait = Duration::from_secs(1)));
    assert_eq!(
        config.routes[0].policy,
        Policy::default().with(|policy| policy.wait = Duration::from_secs(1))
    );
    assert_eq!(config.routes[1].policy.profile, Profile::Stripe);
    assert_eq!(config.routes[1].policy.on_server_error, OnServerError::Unknown);
}

#[test]
fn risky_settings_are_allowed_with_a_warning() {
    let warns = |text: &str, part: &str| {
        let warnings = more(text).warnings;
        assert!(warnings.iter().any(|warning| warning.contains(part)), "{part}: {warnings:#?}");
    };
    warns("[defaults]\nretention = \"23h\"", "ibid.toml:4: every other guarded request: retention is 23h");
    warns("[defaults]\nretry_horizon = \"3d\"", "clients retry for 3d, and retention is only 24h");
    warns("[[route]]\nmatch = \"POST /x\"\nretention = \"1h\"", "ibid.toml:5: `POST /x`: retention is 1h");
    warns("[[route]]\nmatch = \"POST /x\"\nguard = \"off\"", "ibid.toml:5: `POST /x` is not guarded");
    warns("[[route]]\nmatch = \"POST /x\"\nrepeatable = false", "ibid.toml:5: `POST /x` is not guarded");
    warns("[defaults]\nmax_request_age = \"299s\"", "max_request_age is 299s");
    warns("[[route]]\nmatch = \"POST /x\"\nguard = \"off\"\nwait = \"1s\"", "other keys have no effect");
    warns("[[route]]\nmatch = \"POST /x\"", "no reconcile rule for every other guarded request, `POST /x`");
    warns("[[route]]\nmatch = \"POST /x\"\npreset = \"one-transaction\"", "does not fit a gateway");
    warns("trusted = [\"0.0.0.0/0\"]", "everyone may say whose request it is");
    warns("[defaults]\nupstream_timeout = \"16m\"", "max_run is shorter than upstream_timeout");
    warns("[store]\nurl = \"memory:\"", "gone when the process ends");
    let rule = "[[route]]\nmatch = \"POST /x\"\n[route.reconcile]\nrequest = \"GET /x/{tenant}\"\n";
    warns(rule, "does not carry {key}");
    let rule =
        "[[route]]\nmatch = \"POST /x/{id}\"\n[route.reconcile]\nrequest = \"GET /x/{tenant}/{key}\"\n";
    warns(rule, "does not carry {id}");
    warns(
        &format!("{rule}attempts = 1\n"),
        "one attempt, and `not_executed` is believed only when seen twice",
    );
    warns(&format!("[defaults]\nlinger = \"2m\"\n{rule}"), "makes its first lookup after 150s");
    let whole = rule.replace("{tenant}", "{tenant}/{id}");
    let warnings_of = |text: &str| {
        more(text).warnings.into_iter().filter(|w| !w.starts_with("no reconcile rule for every"))
    };
    assert_eq!(warnings_of(&whole).collect::<Vec<_>>(), Vec::<String>::new());
    let hashed = format!("upstream = \"http://a\"\n[tenant]\nfrom = \"authorization\"\n{whole}");
    let warnings = read(&hashed).unwrap().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("a digest of the credential")), "{warnings:#?}");
    let no_rule = "[defaults]\non_lapse = \"fail\"\non_server_error = \"store\"\n";
    warns(no_rule, "no reconcile rule for every other guarded request");
}

#[test]
fn addresses_that_can_not_be_served_together_are_refused() {
    let with = |text: &str| read(&format!("{text}{BASE}"));
    let same = with("listen = \"127.0.0.1:1\"\nadmin_listen = \"127.0.0.1:1\"\n").unwrap_err();
    assert!(same.to_string().contains("are both `127.0.0.1:1`"));
    let circle = with("listen = \"127.0.0.1:3000\"\n").unwrap_err();
    assert!(circle.to_string().contains("where the gateway itself listens"));
    let name = with("listen = \"localhost:80\"\n").unwrap_err();
    assert!(name.to_string().contains("ibid.toml:1: `listen` must be an address and a port"), "{name}");
    assert!(with("listen = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\n").is_ok());
}

#[test]
fn a_route_without_match_is_the_only_thing_said_about_it() {
    assert!(
        refusal("[[route]]\n[route.reconcile]\nrequest = \"GET /x/{key}\"\n").contains("`match` is missing")
    );
}

#[test]
fn pass_timeout_and_stream_are_read_where_they_belong() {
    let config = more("[defaults]\npass_timeout = \"90s\"\n[[route]]\nmatch = \"POST /x\"\nstream = true\n");
    assert_eq!(config.pass_timeout, Some(Duration::from_secs(90)));
    assert!(!config.defaults.stream && config.routes[0].policy.stream);
    assert_eq!(more("").pass_timeout, None);
    for (text, message) in [
        ("[defaults]\npass_timeout = \"0s\"", "ibid.toml:5: `pass_timeout` must be longer than zero"),
        (
            "[[route]]\nmatch = \"GET /x\"\npass_timeout = \"1s\"",
            "ibid.toml:6: `pass_timeout` belongs into `[defaults]`",
        ),
        ("[defaults]\nstream = \"yes\"", "ibid.toml:5: `stream` must be true or false"),
        ("[defaults]\nstream = true\nanswer = \"async\"", "ibid.toml:5: `stream` needs `answer = \"sync\"`"),
        ("[[route]]\nmatch = \"POST /x\"\nanswer = \"prefer\"\nstream = true", "ibid.toml:7: `stream` needs"),
    ] {
        let messages: Vec<String> = failures_of(text).into_iter().map(|failure| failure.message).collect();
        assert!(messages.iter().any(|text| text.starts_with(message)), "{text}: {messages:?}");
    }
}

#[test]
fn the_identity_is_valid_for_a_second_or_more() {
    let valid_for = |text: &str| more(text).store_options.identity_valid_for;
    assert_eq!(valid_for(""), Duration::from_secs(15));
    assert_eq!(valid_for("[store]\nidentity_valid_for = \"1s\""), Duration::from_secs(1));
}
