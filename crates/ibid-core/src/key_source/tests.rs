use proptest::prelude::*;

use super::*;

/// A request: field lines and a body.
struct HeaderAndBody<'a>(&'a [(&'a str, &'a str)], &'a [u8]);

impl RequestView for HeaderAndBody<'_> {
    fn method(&self) -> &str {
        "POST"
    }

    fn path(&self) -> &str {
        "/"
    }

    fn query(&self) -> Option<&str> {
        None
    }

    fn header_lines(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        self.0.iter().filter(|(known, _)| *known == name).for_each(|(_, line)| each(line.as_bytes()));
    }

    fn body(&self) -> &[u8] {
        self.1
    }
}

fn key_from(texts: &[&str]) -> KeyFrom {
    KeyFrom::parse(texts.iter().copied()).unwrap()
}

fn search(texts: &[&str], lines: &[(&str, &str)], body: &str) -> Result<Option<String>, KeyError> {
    let key = key_from(texts).find(&HeaderAndBody(lines, body.as_bytes()), KeyForm::QuotedOrBare);
    key.map(|key| key.map(|key| key.as_str().to_owned()))
}

/// Searches at `pointer` in a body of this media type.
fn in_body(pointer: &str, media: &str, body: &str) -> Result<Option<String>, KeyError> {
    search(&[&format!("body:{pointer}")], &[("content-type", media)], body)
}

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

#[test]
fn a_source_is_written_as_it_is_read() {
    for (text, shown) in [
        ("header:Idempotency-Key", "header:idempotency-key"),
        ("header: X-Idempotency-Key ", "header:x-idempotency-key"),
        ("body:/idempotency_key", "body:/idempotency_key"),
        ("body:/a~1b/0", "body:/a~1b/0"),
    ] {
        assert_eq!(KeySource::parse(text).unwrap().to_string(), shown);
    }
    let presets: Vec<String> =
        key_from(&["square", "paypal", "aws"]).sources().iter().map(ToString::to_string).collect();
    assert_eq!(
        presets,
        [
            "body:/idempotency_key",
            "header:paypal-request-id",
            "body:/clientToken",
            "body:/ClientToken",
            "body:/clientRequestToken",
            "body:/ClientRequestToken",
        ]
    );
}

#[test]
fn a_place_that_can_not_carry_a_key_says_why() {
    let refused = |texts: &[&str]| KeyFrom::parse(texts.iter().copied()).unwrap_err();
    for text in ["", "header", "Header:x", "query:key", "form:key", "Square"] {
        assert_eq!(refused(&[text]), KeySourceError::Unknown(text.to_owned()), "{text}");
    }
    for text in ["header:", "header:a b", "header:a:b", "header:ü"] {
        assert!(matches!(refused(&[text]), KeySourceError::HeaderName(_)), "{text}");
    }
    for text in ["header:Authorization", "header:Cookie", "header:date", "header:Content-Type"] {
        assert!(matches!(refused(&[text]), KeySourceError::HeaderTaken(_)), "{text}");
    }
    for text in ["body:key", "body:/a~2", "body:#/a"] {
        assert!(matches!(refused(&[text]), KeySourceError::Pointer(_)), "{text}");
    }
    assert_eq!(refused(&["body:"]), KeySourceError::WholeBody);
    assert_eq!(refused(&[]), KeySourceError::Empty);
    assert_eq!(refused(&["header:A", "header:a"]), KeySourceError::Repeated("header:a".to_owned()));
    let many: Vec<String> = (0..=KeyFrom::SOURCES_MAX).map(|at| format!("header:k{at}")).collect();
    assert_eq!(KeyFrom::parse(many.iter().map(String::as_str)), Err(KeySourceError::TooMany));
}

#[test]
fn the_first_source_that_is_present_wins() {
    let both = ["header:x-key", "body:/k"];
    let lines = [("content-type", JSON), ("x-key", "from-head")];
    assert_eq!(search(&both, &lines, r#"{"k":"from-body"}"#), Ok(Some("from-head".into())));
    assert_eq!(search(&both, &lines[..1], r#"{"k":"from-body"}"#), Ok(Some("from-body".into())));
    assert_eq!(search(&both, &lines[..1], "{}"), Ok(None));
    let turned = ["body:/k", "header:x-key"];
    assert_eq!(search(&turned, &lines, r#"{"k":"from-body"}"#), Ok(Some("from-body".into())));
    assert_eq!(search(&turned, &lines, "{}"), Ok(Some("from-head".into())));
}

#[test]
fn an_unreadable_source_is_never_passed_over() {
    let lines = [("content-type", JSON), ("x-key", ""), ("y-key", "fine")];
    assert_eq!(search(&["header:x-key", "header:y-key"], &lines, ""), Err(KeyError::Empty));
    assert_eq!(search(&["body:/k", "header:y-key"], &lines, r#"{"k":7}"#), Err(KeyError::NotText));
    assert_eq!(search(&["body:/k", "header:y-key"], &lines, "{"), Err(KeyError::Unsearchable));
    let twice = [("x-key", "a"), ("x-key", "a"), ("y-key", "fine")];
    assert_eq!(search(&["header:x-key", "header:y-key"], &twice, ""), Err(KeyError::Repeated));
}

#[test]
fn the_head_alone_decides_where_it_can() {
    let head = |texts: &[&str], lines: &[(&str, &str)]| {
        key_from(texts).find_in_head(&HeaderAndBody(lines, b"not looked at"), KeyForm::QuotedOrBare)
    };
    let key = Key::stored("a").unwrap();
    assert_eq!(head(&["header:x", "body:/k"], &[("x", "a")]), Ok(HeadSearch::Found(key)));
    assert_eq!(head(&["header:x", "body:/k"], &[]), Ok(HeadSearch::NeedsBody));
    assert_eq!(head(&["body:/k", "header:x"], &[("x", "a")]), Ok(HeadSearch::NeedsBody));
    assert_eq!(head(&["header:x"], &[]), Ok(HeadSearch::Absent));
    assert_eq!(head(&["header:x"], &[("x", "\"")]), Err(KeyError::Syntax));
}

#[test]
fn a_json_body_is_searched_by_pointer() {
    for (pointer, body, key) in [
        ("/k", r#" {"a":{"k":1},"k":"v"} "#, Ok(Some("v"))),
        ("/a/0/k", r#"{"a":[{"k":"v"},{"k":2}]}"#, Ok(Some("v"))),
        ("/k", r#"{"\u006b":"\u0076"}"#, Ok(Some("v"))),
        ("/k", r#"{"k":"a \"b\", c;"}"#, Ok(Some("a \"b\", c;"))),
        ("/k", r#"{"K":"v"}"#, Ok(None)),
        ("/k", "[]", Ok(None)),
        ("/k", "\"k\"", Ok(None)),
        ("/a/k", r#"{"a":5}"#, Ok(None)),
        ("/k", "", Ok(None)),
        ("/k", r#"{"k":"a","k":"a"}"#, Err(KeyError::Repeated)),
        ("/k", r#"{"k":"a","\u006b":"b"}"#, Err(KeyError::Repeated)),
        ("/a/k", r#"{"a":{"k":"v"},"a":{}}"#, Err(KeyError::Repeated)),
        ("/k", r#"{"k":1}"#, Err(KeyError::NotText)),
        ("/k", r#"{"k":null}"#, Err(KeyError::NotText)),
        ("/k", r#"{"k":["v"]}"#, Err(KeyError::NotText)),
        ("/k", r#"{"k":""}"#, Err(KeyError::Empty)),
        ("/k", r#"{"k":"é"}"#, Err(KeyError::Syntax)),
        ("/k", r#"{"k":"a\nb"}"#, Err(KeyError::Syntax)),
        ("/k", r#"{"k":"\ud800"}"#, Err(KeyError::Unsearchable)),
        ("/k", r#"{"k":"v""#, Err(KeyError::Unsearchable)),
        ("/k", r#"{"k":"v"} {}"#, Err(KeyError::Unsearchable)),
        ("/k", r#"{"k":"v",}"#, Err(KeyError::Unsearchable)),
        ("/k", "k=v", Err(KeyError::Unsearchable)),
        ("/k", "\u{feff}{}", Err(KeyError::Unsearchable)),
    ] {
        assert_eq!(in_body(pointer, JSON, body), key.map(|key| key.map(str::to_owned)), "{pointer} {body}");
    }
    let long = format!(r#"{{"k":"{}"}}"#, "x".repeat(Key::LEN_MAX + 1));
    assert_eq!(in_body("/k", JSON, &long), Err(KeyError::TooLong));
    let deep = "[".repeat(100_000);
    assert_eq!(in_body("/k", JSON, &deep), Err(KeyError::Unsearchable));
    let latin = key_from(&["body:/k"]);
    let sent = HeaderAndBody(&[("content-type", JSON)], b"{\"k\":\"v\",\"a\":\"\xe9\"}");
    assert_eq!(latin.find(&sent, KeyForm::QuotedOrBare), Err(KeyError::Unsearchable));
}

#[test]
fn a_form_is_searched_by_field_name() {
    for (pointer, body, key) in [
        ("/k", "a=1&k=v&b=2", Ok(Some("v"))),
        ("/k", "%6b=%76+w", Ok(Some("v w"))),
        ("/k", "k=a%3Db", Ok(Some("a=b"))),
        ("/k", "kk=v&k[]=w&a=k", Ok(None)),
        ("/k", "discount=100%", Ok(None)),
        ("/a/k", "a=1&k=v", Ok(None)),
        ("/k", "k=v&k=v", Err(KeyError::Repeated)),
        ("/k", "k=v&%6B=w", Err(KeyError::Repeated)),
        ("/k", "k", Err(KeyError::Empty)),
        ("/k", "k=", Err(KeyError::Empty)),
        ("/k", "k=%zz", Err(KeyError::Syntax)),
        ("/k", "k=%ff", Err(KeyError::Syntax)),
        ("/k", "k=%0a", Err(KeyError::Syntax)),
    ] {
        assert_eq!(in_body(pointer, FORM, body), key.map(|key| key.map(str::to_owned)), "{pointer} {body}");
    }
}

#[test]
fn a_multipart_form_is_searched_by_part_name() {
    let part = |head: &str, content: &str| format!("--b\r\n{head}\r\n\r\n{content}\r\n");
    let named = |name: &str, content: &str| {
        part(&format!("Content-Disposition: form-data; name=\"{name}\""), content)
    };
    let file = part("Content-Disposition: form-data; name=\"k\"; filename=\"k.txt\"", "v");
    let coded = part("Content-Disposition: form-data; name=k\r\nContent-Transfer-Encoding: base64", "dg==");
    for (parts, key) in [
        (named("a", "1") + &named("k", "v"), Ok(Some("v"))),
        (part("content-disposition: FORM-DATA; name=k", "v"), Ok(Some("v"))),
        (named("a", "k"), Ok(None)),
        (named("k", "v") + &named("k", "v"), Err(KeyError::Repeated)),
        (named("k", ""), Err(KeyError::Empty)),
        (file, Err(KeyError::NotText)),
        (coded, Err(KeyError::NotText)),
        (part("Content-Disposition: form-data; name*=utf-8''k", "v"), Err(KeyError::Unsearchable)),
        (part("Content-Disposition: form-data; name=a; name=k", "v"), Err(KeyError::Unsearchable)),
        (part("Content-Type: text/plain", "v"), Err(KeyError::Unsearchable)),
        ("--b\nbroken".to_owned(), Err(KeyError::Unsearchable)),
    ] {
        let body = parts + "--b--\r\n";
        let read = in_body("/k", "multipart/form-data; boundary=b", &body);
        assert_eq!(read, key.map(|key| key.map(str::to_owned)), "{body}");
    }
}

#[test]
fn a_body_that_can_not_be_searched_is_unreadable() {
    let body = r#"{"k":"v"}"#;
    for media in
        ["text/plain", "application/xml", "application/octet-stream", "application/json;charset=utf-16"]
    {
        assert_eq!(in_body("/k", media, body), Err(KeyError::Unsearchable), "{media}");
        assert_eq!(in_body("/k", media, ""), Ok(None), "{media}: an empty body holds no key");
    }
    assert_eq!(search(&["body:/k"], &[], body), Err(KeyError::Unsearchable));
    for media in ["application/json; charset=UTF-8", "application/vnd.api+json", "application/x-amz-json-1.1"]
    {
        assert_eq!(in_body("/k", media, body), Ok(Some("v".into())), "{media}");
    }
    let coded = |coding| search(&["body:/k"], &[("content-type", JSON), ("content-encoding", coding)], body);
    assert_eq!(coded("gzip"), Err(KeyError::Unsearchable));
    assert_eq!(coded("Identity"), Ok(Some("v".into())));
}

#[test]
fn sources_survive_their_bytes_and_the_default_takes_none() {
    let mixed = key_from(&["header:X-Key", "body:/a~1b/k"]);
    let bytes = minicbor::to_vec(&mixed).unwrap();
    assert_eq!(minicbor::decode::<KeyFrom>(&bytes).unwrap(), mixed);
    assert!(Encode::<()>::is_nil(&KeyFrom::default()) && !Encode::<()>::is_nil(&mixed));
    assert_eq!(<KeyFrom as Decode<'_, ()>>::nil(), Some(KeyFrom::default()));
}

#[test]
fn a_key_in_another_known_place_is_noticed() {
    let elsewhere = |lines: &[(&str, &str)], body: &str| {
        let source =
            key_from(&["header:idempotency-key"]).find_elsewhere(&HeaderAndBody(lines, body.as_bytes()));
        source.map(|source| source.to_string())
    };
    assert_eq!(elsewhere(&[("paypal-request-id", "a")], "").as_deref(), Some("header:paypal-request-id"));
    let json = [("content-type", JSON)];
    assert_eq!(elsewhere(&json, r#"{"clientToken":"a"}"#).as_deref(), Some("body:/clientToken"));
    assert_eq!(elsewhere(&[("content-type", FORM)], "ClientToken=a").as_deref(), Some("body:/ClientToken"));
    for body in [r#"{"clientToken":""}"#, r#"{"clientToken":7}"#, r#"{"clientToken":"a""#, "{}", ""] {
        assert_eq!(elsewhere(&json, body), None, "{body}");
    }
    assert_eq!(elsewhere(&[("idempotency-key", "a")], ""), None, "there it is looked for");
}

proptest! {
    #[test]
    fn no_body_makes_a_search_panic(body: Vec<u8>, kind in 0..3usize) {
        let media = [JSON, FORM, "multipart/form-data; boundary=b"][kind];
        let key = key_from(&["body:/k", "body:/0/k"]).find(&HeaderAndBody(&[("content-type", media)], &body), KeyForm::QuotedOrBare);
        if let Ok(Some(key)) = key {
            prop_assert_eq!(Key::stored(key.as_str()), Ok(key));
        }
    }

    #[test]
    fn a_json_body_is_searched_as_serde_json_reads_it(
        members in proptest::collection::vec(("[a-c]", "[ -~é]{0,3}", any::<bool>()), 0..5),
    ) {
        let texts: Vec<String> = members
            .iter()
            .map(|(name, value, is_nested)| {
                let value = serde_json::to_string(value).unwrap();
                let value = if *is_nested { format!("{{\"a\":{value}}}") } else { value };
                format!("{}:{value}", serde_json::to_string(name).unwrap())
            })
            .collect();
        let body = format!("{{{}}}", texts.join(" , "));
        let named = members.iter().filter(|(name, ..)| name == "a").count();
        let parsed: serde_json::Value = serde_json::from_str(&body).unwrap();
        let expected = match &parsed["a"] {
            _ if named > 1 => None,
            serde_json::Value::String(text) => Some(Key::stored(text).map(|key| Some(key.as_str().to_owned()))),
            serde_json::Value::Null => Some(Ok(None)),
            _ => Some(Err(KeyError::NotText)),
        };
        let key = in_body("/a", JSON, &body);
        match expected {
            Some(expected) => prop_assert_eq!(key, expected, "{}", body),
            // A value before the second one may not be a string, which is noticed first.
            None => prop_assert!(matches!(key, Err(KeyError::Repeated | KeyError::NotText)), "{}", body),
        }
    }
}
