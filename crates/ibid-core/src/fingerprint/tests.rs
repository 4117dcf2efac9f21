//! Stories about which requests a fingerprint distinguishes, one per rule.

use super::*;

mod json;
mod persistence;

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
