//! Stories about which requests a fingerprint distinguishes, one per rule.

use super::json_exact::NotExactError;
use super::*;

/// A request in a test: a base order, changed as each story needs.
#[derive(Clone)]
struct Request {
    method: &'static str,
    path: &'static str,
    query: Option<&'static str>,
    headers: Vec<(&'static str, &'static str)>,
    body: Vec<u8>,
}

impl RequestView for Request {
    fn method(&self) -> &str {
        self.method
    }
    fn path(&self) -> &str {
        self.path
    }
    fn query(&self) -> Option<&str> {
        self.query
    }
    fn header_lines(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        self.headers.iter().filter(|(field, _)| *field == name).for_each(|(_, line)| each(line.as_bytes()));
    }
    fn body(&self) -> &[u8] {
        &self.body
    }
}

impl Request {
    fn with(mut self, change: impl FnOnce(&mut Request)) -> Request {
        change(&mut self);
        self
    }
    fn header(self, name: &'static str, line: &'static str) -> Request {
        self.with(|request| request.headers.push((name, line)))
    }
    fn with_media(self, media: &'static str) -> Request {
        self.with(|request| request.headers = vec![("content-type", media)])
    }
}

fn post(body: impl AsRef<[u8]>) -> Request {
    let headers = vec![("content-type", "application/json")];
    Request { method: "POST", path: "/payments", query: None, headers, body: body.as_ref().to_vec() }
}

fn form(boundary: &'static str, body: &str) -> Request {
    let body = body.replace('\n', "\r\n").replace("BOUNDARY", boundary);
    let media: &'static str = match boundary {
        "x" => "multipart/form-data; boundary=x",
        "y" => "multipart/form-data; boundary=\"y\"",
        other => panic!("no media type for `{other}`"),
    };
    post(body).with_media(media)
}

fn secrets() -> Secrets {
    Secrets::new(vec![Secret::new(b"0123456789abcdef").unwrap()]).unwrap()
}

fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).unwrap()
}

fn is_same(recipe: &Recipe, profile: Profile, a: &Request, b: &Request) -> bool {
    let stored = secrets().fingerprint(recipe, profile, a);
    secrets().matches(&stored, recipe, profile, b)
}

#[track_caller]
fn same_under(recipe: &Recipe, a: &Request, b: &Request) {
    assert!(is_same(recipe, Profile::Ietf, a, b), "taken for two requests");
}

#[track_caller]
fn differ_under(recipe: &Recipe, a: &Request, b: &Request) {
    assert!(!is_same(recipe, Profile::Ietf, a, b), "taken for one request");
}

#[track_caller]
fn same(a: &Request, b: &Request) {
    same_under(&Recipe::default(), a, b);
}

#[track_caller]
fn differ(a: &Request, b: &Request) {
    differ_under(&Recipe::default(), a, b);
}

#[track_caller]
fn same_json(a: &str, b: &str) {
    same(&post(a), &post(b));
}

#[track_caller]
fn differ_json(a: impl AsRef<[u8]>, b: impl AsRef<[u8]>) {
    differ(&post(a), &post(b));
}

#[test]
fn a_retry_is_recognised_whatever_its_order_and_spacing() {
    same_json(r#"{"to":"ann","amount":1}"#, "{ \"amount\" : 1,\n\t\"to\" : \"ann\" }\r\n");
    differ_json(r#"{"to":"ann"}"#, r#"{"to":"bob"}"#);
    differ_json("[1,2]", "[2,1]");
    differ_json(r#"{"a":null}"#, "{}");
}

#[test]
fn method_path_and_query_count() {
    let base = post("{}");
    differ(&base, &base.clone().with(|r| r.method = "PATCH"));
    differ(&base, &base.clone().with(|r| r.method = "post"));
    differ(&base, &base.clone().with(|r| r.path = "/payments/"));
    differ(&base, &base.clone().with(|r| r.query = Some("")));
    let to = |query| base.clone().with(|r| r.query = Some(query));
    differ(&to("to=alice"), &to("to=mallory"));
    differ(&to("a=1&b=2"), &to("b=2&a=1"));
    differ(&to("a=%41"), &to("a=A"));
}

#[test]
fn parts_cannot_run_into_each_other() {
    let base = post("{}");
    let to = |path, query| base.clone().with(|r| (r.path, r.query) = (path, query));
    differ(&to("/p", Some("a=&a=b&c=")), &to("/p", Some("a=&b=c&b=")));
    differ(&to("/p/q", Some("r")), &to("/p", Some("/qr")));
    differ(&to("/pq", None), &to("/p", Some("q")));
    let recipe = Recipe::default().with_header("a").with_header("b");
    let lines = |a, b| base.clone().header("a", a).header("b", b);
    differ_under(&recipe, &lines("xy", "z"), &lines("x", "yz"));
    differ_under(&recipe, &lines("x", "").header("a", "y"), &lines("xy", ""));
}

#[test]
fn media_type_counts_by_meaning() {
    let of_media = |media| post("[1]").with_media(media);
    same(&of_media("application/json"), &of_media("Application/JSON"));
    same(&of_media("application/json;charset=UTF-8"), &of_media("application/json ; Charset=\"utf-8\""));
    differ(&of_media("application/json"), &of_media("application/json; charset=utf-8"));
    differ(&of_media("application/json"), &of_media("application/vnd.api+json"));
    differ(&of_media("application/json; v=1"), &of_media("application/json; v=2"));
    differ(&of_media("text/plain; a=\"b;c=d\""), &of_media("text/plain; a=b; c=d"));
    differ(&of_media(""), &post("[1]").with(|r| r.headers.clear()));
    differ(&of_media("json"), &of_media("json "));
    // One JSON type and one other type.
    let spaced = |media| post("[ 1 ]").with_media(media);
    same(&of_media("application/vnd.api+json"), &spaced("application/vnd.api+json"));
    for media in
        ["text/plain", "application/jsonp", "application/json; charset=utf-16", "json", "", "a/b/json"]
    {
        differ(&of_media(media), &spaced(media));
    }
    let twice = |body: &str| post(body).header("content-type", "application/json");
    differ(&twice("[1]"), &twice("[ 1 ]"));
}

#[test]
fn a_coded_body_counts_by_its_bytes() {
    let coded = |body: &str, coding| post(body).header("content-encoding", coding);
    same(&coded("[1]", "gzip"), &coded("[1]", "gzip"));
    differ(&coded("[1]", "gzip"), &coded("[ 1 ]", "gzip"));
    differ(&coded("[1]", "gzip"), &coded("[1]", "br"));
    differ(&coded("[1]", "gzip"), &post("[1]"));
}

#[test]
fn only_configured_headers_count() {
    let base = post("{}");
    for name in ["date", "traceparent", "user-agent", "accept", "idempotency-key", "x-forwarded-for"] {
        same(&base, &base.clone().header(name, "x"));
    }
    let recipe = Recipe::default().with_header("Api-Version");
    let of = |version| base.clone().header("api-version", version);
    same_under(&recipe, &of("1"), &of("1").header("date", "today"));
    differ_under(&recipe, &of("1"), &of("2"));
    differ_under(&recipe, &of(""), &base);
    differ_under(&recipe, &of("1"), &of("1").header("api-version", "1"));
}

#[test]
fn fields_that_make_it_another_request_always_count() {
    let base = post("{}");
    for name in counted_fields(Profile::Ietf) {
        let with = |line| base.clone().header(name, line);
        same(&with("PUT"), &with("PUT"));
        differ(&with("PUT"), &with("DELETE"));
        differ(&with("PUT"), &base);
        differ(&with(""), &base);
        differ(&with("PUT"), &with("PUT").header(name, "PUT"));
        // A field that always counts and is also configured does not pass for a line of another field.
        let recipe = Recipe::default().with_header(name).with_header("v");
        differ_under(&recipe, &with("PUT").header("v", "1"), &base.clone().header("v", "PUT"));
        differ_under(&recipe, &with("PUT"), &base);
    }
    let soap = |line| base.clone().header("soapaction", line);
    differ(&soap("x").header("x-amz-target", "y"), &soap("y").header("x-amz-target", "x"));
}

#[test]
fn profile_stripe_counts_the_account_a_request_acts_for() {
    let recipe = Recipe::default();
    for name in ["stripe-account", "stripe-context"] {
        let of = |account| post("{}").header(name, account);
        assert!(is_same(&recipe, Profile::Stripe, &of("acct_1"), &of("acct_1")));
        assert!(!is_same(&recipe, Profile::Stripe, &of("acct_1"), &of("acct_2")));
        assert!(!is_same(&recipe, Profile::Stripe, &of("acct_1"), &post("{}")));
        assert!(is_same(&recipe, Profile::Ietf, &of("acct_1"), &of("acct_2")));
    }
}

#[test]
fn integers_beyond_a_double_are_distinguished() {
    differ_json("9007199254740992", "9007199254740993");
    differ_json("[9223372036854775807]", "[9223372036854775808]");
    differ_json("[10000000000000000999]", "[10000000000000001000]");
}

#[test]
fn long_decimals_are_distinguished() {
    differ_json("[1.000000000000000005]", "[1]");
    differ_json("[0.1]", "[0.1000000000000000055511151231257827]");
}

#[test]
fn one_value_has_many_spellings() {
    for one in ["1.0", "1E0", "1e0", "10e-1", "0.1e1", "1.000", "0.0001E+4", "1e-0"] {
        same_json("1", one);
    }
    same_json("1E6", "1000000");
    same_json("1e-7", "0.0000001");
    same_json("-1.50", "-15e-1");
    differ_json("1", "-1");
    differ_json("1", "\"1\"");
}

#[test]
fn zero_has_no_sign() {
    for zero in ["-0", "0.0", "-0.0", "0e9", "-0E-9", "0e99999999999999999999"] {
        same_json("[0]", &format!("[{zero}]"));
    }
}

#[test]
fn overflow_and_underflow_keep_their_value_up_to_the_cap() {
    differ_json("1e400", "1e401");
    differ_json("1E-999", "0");
    same_json("1e400", "10E399");
    same_json("1e6144", "10e6143");
    assert_eq!(json_exact::canonical(b"1e6144").unwrap(), b"1e+6144");
    for token in ["1e6145", "10e6144", "-1e-6145", "1e99999999999999999999", "0.1e-99999999999999999999"] {
        assert_eq!(json_exact::canonical(token.as_bytes()), Err(NotExactError::Exponent), "{token}");
    }
    differ_json("[1e6145]", "[ 1e6145]");
    // The tokenizer's own bound on digits before the point.
    assert!(json_exact::canonical("9".repeat(4300).as_bytes()).is_ok());
    assert_eq!(json_exact::canonical("9".repeat(4301).as_bytes()), Err(NotExactError::NotJson));
}

#[test]
fn repeated_names_count_raw() {
    let canonical = |text: &str| json_exact::canonical(text.as_bytes());
    for text in
        [r#"{"a":1,"a":2}"#, r#"{"a":1,"a":1}"#, r#"{"b":0,"a":1,"\u0061":0}"#, r#"[{"a":{"b":1,"b":-0}}]"#]
    {
        assert_eq!(canonical(text), Err(NotExactError::RepeatedName), "{text}");
    }
    differ_json(r#"{"a":1,"a":2}"#, r#"{"a":2}"#);
    differ_json(r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#);
    // A name that occurs in two objects is not repeated.
    assert!(canonical(r#"{"a":{"a":1},"b":{"a":1}}"#).is_ok());
}

#[test]
fn broken_text_counts_raw() {
    let broken: [&[u8]; 9] = [
        br#"["\ud800"]"#,
        br#"["\udc00\ud800"]"#,
        br#"["\ud800a"]"#,
        br#"{"\udfaa":0}"#,
        b"[\"\xff\"]",
        b"[\"\xed\xa0\x80\"]",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe[\0]\0",
        b"[\"\xc0\xaf\"]",
    ];
    for (at, body) in broken.iter().enumerate() {
        assert_eq!(json_exact::canonical(body), Err(NotExactError::NotJson), "{at}");
        differ_json(body, [body, &b" "[..]].concat());
    }
    differ_json(br#"["\ud800"]"#, r#"["\ufffd"]"#);
}

#[test]
fn unicode_is_never_normalised() {
    differ_json("[\"\u{e9}\"]", "[\"e\u{301}\"]");
    differ_json("{\"\u{e9}\":1}", "{\"e\u{301}\":1}");
}

#[test]
fn escapes_are_spellings() {
    same_json(r#"["\u0041\/\u00e9\ud83d\ude02"]"#, "[\"A/\u{e9}\u{1f602}\"]");
    same_json(r#"["\u000a\u0022\u005c"]"#, r#"["\n\"\\"]"#);
    differ_json(r#"["\\n"]"#, r#"["\n"]"#);
    differ_json(r#"["\u0000"]"#, r#"[""]"#);
}

#[test]
fn names_are_ordered_as_utf16() {
    let canonical = json_exact::canonical("{\"\u{fb33}\":1,\"\u{1f602}\":2}".as_bytes()).unwrap();
    assert_eq!(canonical, "{\"\u{1f602}\":2,\"\u{fb33}\":1}".as_bytes());
}

#[test]
fn deep_bodies_count_raw_and_cost_no_stack() {
    let nested = |depth: usize| ["[".repeat(depth), "]".repeat(depth)].concat();
    let max = json_exact::DEPTH_MAX;
    assert!(json_exact::canonical(nested(max).as_bytes()).is_ok());
    for depth in [max + 1, 500, 1_000_000] {
        assert_eq!(json_exact::canonical(nested(depth).as_bytes()), Err(NotExactError::TooDeep));
    }
    assert_eq!(json_exact::canonical("{\"a\":".repeat(100_000).as_bytes()), Err(NotExactError::TooDeep));
    differ_json(nested(max + 1), [nested(max + 1), " ".into()].concat());
}

#[test]
fn a_body_that_is_not_json_counts_raw() {
    for body in [
        "",
        " ",
        "nul",
        "[1,]",
        "{\"a\":1,}",
        "{} {}",
        "[1]x",
        "01",
        "1.",
        ".5",
        "+1",
        "NaN",
        "-Infinity",
        "'a'",
    ] {
        assert_eq!(json_exact::canonical(body.as_bytes()), Err(NotExactError::NotJson), "{body}");
        differ_json(body, format!("{body} "));
    }
}

#[test]
fn a_raw_body_never_passes_for_json() {
    let json = post("{\"a\":1}");
    let raw = Recipe::default().with_body(BodyRule::Raw);
    let ours = secrets();
    assert_ne!(
        ours.fingerprint(&raw, Profile::Ietf, &json),
        ours.fingerprint(&Recipe::default(), Profile::Ietf, &json)
    );
    differ_under(&raw, &post("[1]"), &post("[ 1]"));
    same_under(&raw, &post("[1]"), &post("[1]"));
}

#[test]
fn excluded_values_may_change_and_all_else_may_not() {
    let recipe =
        Recipe::default().with_exclude(pointer("/meta/sent_at")).with_exclude(pointer("/lines/0/id"));
    let body = |at: &str, id: &str, to: &str| {
        post(format!(r#"{{"to":"{to}","meta":{{"sent_at":{at},"v":1}},"lines":[{{"id":{id},"n":1}}]}}"#))
    };
    same_under(&recipe, &body("1", "1", "ann"), &body("\"later\"", "[2]", "ann"));
    differ_under(&recipe, &body("1", "1", "ann"), &body("1", "1", "bob"));
    let bare = post(r#"{"to":"ann","meta":{"v":1},"lines":[{"n":1}]}"#);
    same_under(&recipe, &body("1", "1", "ann"), &bare);
    // A body that cannot be read as JSON counts whole.
    differ_under(
        &recipe,
        &post(r#"{"meta":{"sent_at":1,"sent_at":2}}"#),
        &post(r#"{"meta":{"sent_at":1,"sent_at":3}}"#),
    );
}

#[test]
fn only_included_values_count() {
    let recipe = Recipe::default().with_include(pointer("/to")).with_include(pointer("/amount"));
    let fields = |text: &str| post(format!("{{{text}}}"));
    same_under(
        &recipe,
        &fields(r#""to":1,"amount":2,"note":3"#),
        &fields(r#""note":[],"amount":2.0,"to":1"#),
    );
    differ_under(&recipe, &fields(r#""to":1,"amount":2"#), &fields(r#""to":1,"amount":3"#));
    differ_under(&recipe, &fields(r#""to":1,"amount":2"#), &fields(r#""to":2,"amount":1"#));
    differ_under(&recipe, &fields(r#""to":1,"amount":null"#), &fields(r#""to":1"#));
    differ_under(&recipe, &fields(r#""to":1"#), &fields(r#""amount":1"#));
}

#[test]
fn a_body_with_nothing_included_counts_whole() {
    let recipe = Recipe::default().with_include(pointer("/to")).with_exclude(pointer("/at"));
    differ_under(&recipe, &post(r#"{"note":1}"#), &post(r#"{"note":2}"#));
    differ_under(&recipe, &post(r#"{"note":1,"at":1}"#), &post(r#"{"note":1,"at":2}"#));
    same_under(&recipe, &post(r#"{"note":1,"at":1}"#), &post(r#"{"at":1,"note":1}"#));
    differ_under(&recipe, &post(r#"{"note":1}"#), &post("[]"));
    differ_under(&recipe, &post("\"a\""), &post("\"b\""));
}

#[test]
fn exclusion_applies_to_included_values() {
    let recipe = Recipe::default().with_include(pointer("/order")).with_exclude(pointer("/order/at"));
    let body = |at: u8, n: u8, note: u8| post(format!(r#"{{"order":{{"at":{at},"n":{n}}},"note":{note}}}"#));
    same_under(&recipe, &body(1, 1, 1), &body(2, 1, 2));
    differ_under(&recipe, &body(1, 1, 1), &body(1, 2, 1));
}

const FORM: &str = "--BOUNDARY
Content-Disposition: form-data; name=\"to\"

ann
--BOUNDARY
Content-Disposition: form-data; name=\"slip\"; filename=\"a.txt\"
Content-Type: text/plain

line
--BOUNDARY--
";

#[test]
fn a_form_is_its_parts_not_its_boundary() {
    same(&form("x", FORM), &form("y", FORM));
    same(&form("x", FORM), &form("y", &FORM.replace("Content-Disposition:", "content-disposition:  ")));
    same(&form("x", FORM), &form("y", FORM.trim_end()));
    for (old, new) in [
        ("ann", "bob"),
        ("name=\"to\"", "name=\"of\""),
        ("a.txt", "b.txt"),
        ("text/plain", "text/html"),
        ("line\n", "line\n\n"),
        ("ann\n", ""),
    ] {
        differ(&form("x", FORM), &form("y", &FORM.replacen(old, new, 1)));
    }
}

#[test]
fn the_order_of_parts_counts() {
    let part = |name: &str| format!("--BOUNDARY\nContent-Disposition: form-data; name={name}\n\n1\n");
    let of = |names: &[&str]| {
        names.iter().map(|name| part(name)).chain(["--BOUNDARY--\n".into()]).collect::<String>()
    };
    same(&form("x", &of(&["a", "b"])), &form("y", &of(&["a", "b"])));
    differ(&form("x", &of(&["a", "b"])), &form("y", &of(&["b", "a"])));
    differ(&form("x", &of(&["a", "b"])), &form("y", &of(&["a"])));
    differ(&form("x", &of(&[])), &post("").with_media("multipart/form-data; boundary=x"));
}

#[test]
fn a_form_that_can_be_read_in_two_ways_counts_raw() {
    let bodies = [
        FORM.replace("line", "line --BOUNDARY"),
        FORM.replace("--BOUNDARY--", "--BOUNDARY "),
        FORM.replace("--BOUNDARY--\n", ""),
        FORM.replace("--BOUNDARY--", "--BOUNDARY--\nepilogue"),
        format!("preamble\n{FORM}"),
        FORM.replace("; filename", ";\n filename"),
        FORM.replace("Content-Disposition: form-data; name=\"to\"\n", ""),
        FORM.replacen("\n\n", "\n", 1),
        FORM.replace("BOUNDARY", "other"),
        String::new(),
    ];
    for body in &bodies {
        same(&form("x", body), &form("x", body));
        // A body that counts by its bytes differs from itself under another boundary: its bytes, or the way to read
        // them, changed.
        if body.contains("BOUNDARY") {
            differ(&form("x", body), &form("y", body));
        }
    }
    let bare = |boundary: &'static str| form(boundary, FORM).with(|r| r.body.retain(|&byte| byte != b'\r'));
    differ(&bare("x"), &bare("y"));
}

#[test]
fn another_secret_makes_another_fingerprint() {
    let other = Secrets::new(vec![Secret::new(b"fedcba9876543210").unwrap()]).unwrap();
    let recipe = Recipe::default();
    let stored = other.fingerprint(&recipe, Profile::Ietf, &post("{}"));
    assert_ne!(
        stored.to_bytes()[5..],
        secrets().fingerprint(&recipe, Profile::Ietf, &post("{}")).to_bytes()[5..]
    );
    assert!(!secrets().matches(&stored, &recipe, Profile::Ietf, &post("{}")));
    assert!(!secrets().holds(stored.secret()) && other.holds(stored.secret()));
}

#[test]
fn after_a_rotation_the_newest_writes_and_the_old_still_match() {
    let old = Secret::new(b"0123456789abcdef").unwrap();
    let new =
        Secret::new(b"a newer secret, longer than a block of the hash: 64 bytes and then some").unwrap();
    let before = Secrets::new(vec![old.clone()]).unwrap();
    let after = Secrets::new(vec![new.clone(), old.clone()]).unwrap();
    let recipe = Recipe::default();
    let stored = before.fingerprint(&recipe, Profile::Ietf, &post("[1]"));
    assert!(after.matches(&stored, &recipe, Profile::Ietf, &post("[1.0]")));
    assert!(!after.matches(&stored, &recipe, Profile::Ietf, &post("[2]")));
    assert_eq!(after.fingerprint(&recipe, Profile::Ietf, &post("[1]")).secret(), new.id());
    assert!(after.holds(old.id()) && !before.holds(new.id()));
}

#[test]
fn secrets_are_refused_when_short_missing_or_twice() {
    assert_eq!(Secret::new([7; 15]).unwrap_err(), SecretError::TooShort);
    assert_eq!(Secrets::new(vec![]).unwrap_err(), SecretError::NoSecret);
    let one = Secret::new([7; 16]).unwrap();
    assert_eq!(Secrets::new(vec![one.clone(), one.clone()]).unwrap_err(), SecretError::SameId(one.id()));
}

#[test]
fn debug_shows_neither_secret_nor_digest() {
    let secrets = secrets();
    let stored = secrets.fingerprint(&Recipe::default(), Profile::Ietf, &post("{}"));
    let id = stored.secret();
    assert_eq!(format!("{secrets:?}"), format!("Secrets([Secret {{ id: SecretId({id}), .. }}])"));
    assert_eq!(format!("{stored:?}"), format!("Fingerprint {{ version: 2, secret: SecretId({id}), .. }}"));
}

#[test]
fn a_fingerprint_of_an_unknown_version_or_length_is_not_read() {
    let bytes = secrets().fingerprint(&Recipe::default(), Profile::Ietf, &post("{}")).to_bytes();
    assert_eq!(Fingerprint::from_bytes(&bytes).unwrap().to_bytes(), bytes);
    for version in [0, 3, 255] {
        let mut bytes = bytes;
        bytes[0] = version;
        assert_eq!(Fingerprint::from_bytes(&bytes), None);
    }
    for len in 0..bytes.len() {
        assert_eq!(Fingerprint::from_bytes(&bytes[..len]), None);
    }
    assert_eq!(Fingerprint::from_bytes(&[&bytes[..], &[0]].concat()), None);
    let unknown = Fingerprint { version: 3, ..Fingerprint::from_bytes(&bytes).unwrap() };
    assert!(!secrets().matches(&unknown, &Recipe::default(), Profile::Ietf, &post("{}")));
}

#[test]
fn a_recipe_travels_with_its_record() {
    let recipe = Recipe::default()
        .with_header("Api-Version")
        .with_include(pointer("/a~1b/0"))
        .with_exclude(pointer("/a~1b/0/at"))
        .with_body(BodyRule::Raw);
    for recipe in [recipe, Recipe::default()] {
        let bytes = minicbor::to_vec(&recipe).unwrap();
        assert_eq!(minicbor::decode::<Recipe>(&bytes).unwrap(), recipe);
    }
    // Pinned: records in stores are read by later programs.
    assert_eq!(hex(&minicbor::to_vec(Recipe::default()).unwrap()), "8480808000");
}

/// Pinned: a stored fingerprint must match the same request for as long as its record lives, so none of these
/// may change without a new version.
#[test]
fn stored_fingerprints_stay_valid() {
    let order =
        post(r#"{"to":"ann","amount":12.50,"lines":[1E30,-0,"\u20ac"]}"#).with(|r| r.query = Some("a=b"));
    let plain = Recipe::default();
    let selected =
        Recipe::default().with_include(pointer("/to")).with_exclude(pointer("/at")).with_header("v");
    let excluding = Recipe::default().with_exclude(pointer("/to"));
    let empty = post("").with(|r| r.headers.clear());
    let soap = order.clone().header("soapaction", "Pay").header("x-http-method-override", "PUT");
    let account = order.clone().header("stripe-account", "acct_1").header("stripe-context", "c");
    let (ietf, stripe) = (Profile::Ietf, Profile::Stripe);
    // Version 1 digests neither `SOAPAction` nor an account, so its digests are the same with and without them.
    #[rustfmt::skip]
    let pinned = [
        ("897125fe54b4e30cd48eb5bea745c953ed4dcb56cfe20fd5335f17859be10499", "c96e4b8694054c414d8017696714c357e9aea14ec7f2ccacdc7bfad00345103a", &plain, ietf, &order),
        ("556324a52f6747d442fedcfa73dc716edcaa879688d2c66a50345513c23760b3", "8d9ecf9895dda64cd75354e0b27a3a0da3bbd7ee1180ff2e326c8ab6285e163c", &plain, ietf, &post("not json")),
        ("abfd68898908923958c555ebc2c982fe0b08ca40cc1f03429836694a942b25fc", "f63c6f657f1eeba9125ea01ddad686acebe5881bc0e9a8ed540ae8be65867668", &plain, ietf, &form("x", FORM)),
        ("2296892aa7b2a80ca953cb9f142eaf097de018152e6d259d0d75ad9d7dd1cb4d", "a8993bbe723deda711889df12329dee0cfa3789642912b04aae6a5085c40d9f1", &selected, ietf, &order.clone().header("v", "2")),
        ("f128ec9c10ae7a3f3dba213a992e1bc0206ac2ee78bc2d3ab9ec4f99773a74ab", "3962adc93b8ed3dcf23f8f6759417030e0df4774376c3d268383b3bf93cb4f89", &excluding, ietf, &order),
        ("a0ae5c97f9168fbbd9ab8157caeb3aad4723370e6fe62f29fde739aaed9a81c2", "8c9d025e6b3906aa02cf3a4eebd2f0757c74af204562ded6db657286642e9071", &plain, ietf, &empty),
        ("897125fe54b4e30cd48eb5bea745c953ed4dcb56cfe20fd5335f17859be10499", "fa6d098b44c3ea0faadc033a6ed6e79c7d7ea28e89475026d2bce0ae8308c7f8", &plain, ietf, &soap),
        ("897125fe54b4e30cd48eb5bea745c953ed4dcb56cfe20fd5335f17859be10499", "2e3233eedef181a553e923778fa69e5376a645d1f77da245918863f0f97dee05", &plain, stripe, &account),
    ];
    for (at, (first, second, recipe, profile, request)) in pinned.into_iter().enumerate() {
        let made = hex(&secrets().fingerprint(recipe, profile, request).to_bytes());
        assert_eq!(made, format!("023c01134d{second}"), "request {at}");
        for stored in [format!("013c01134d{first}"), made] {
            let stored = Fingerprint::from_bytes(&bytes(&stored)).expect("a known version");
            assert!(secrets().matches(&stored, recipe, profile, request), "request {at}, {stored:?}");
            assert!(!secrets().matches(&stored, recipe, profile, &post("another")), "request {at}");
        }
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
