//! The URLs of the upstream and of the store, and what a store lacks.

use http::uri::Scheme;

use super::*;
use crate::config::addresses::parse_upstream;
use crate::config::store::lacks;

#[test]
fn the_upstream_is_an_absolute_http_url() {
    for (url, problem) in [
        ("127.0.0.1:3000", "must be an absolute `http://` or `https://` URL"),
        ("/api", "must be an absolute `http://` or `https://` URL"),
        ("ftp://api", "must be an absolute `http://` or `https://` URL"),
        ("http://api/?x=1", "query or a fragment"),
        ("http://api/#x", "query or a fragment"),
        ("http://u:p@api/", "user or password"),
        ("http://", "is not a URL"),
    ] {
        let failure = parse_upstream(url).unwrap_err();
        assert!(failure.message.contains(problem), "{url}: {failure}");
    }
    assert_eq!(parse_upstream("http://[::1]:3000/v1").unwrap().path(), "/v1");
    assert_eq!(parse_upstream("https://api.test").unwrap().scheme(), Some(&Scheme::HTTPS));
}

#[test]
fn stores_are_named_by_url() {
    assert_eq!(StoreUrl::parse("sqlite:a b.db"), Ok(StoreUrl::Sqlite("a b.db".into())));
    assert_eq!(StoreUrl::parse("sqlite:///var/x.db"), Ok(StoreUrl::Sqlite("/var/x.db".into())));
    assert_eq!(StoreUrl::parse("memory:"), Ok(StoreUrl::Memory));
    for text in
        ["", "ibid.db", "sqlite:", "sqlite::memory:", "sqlite:x?mode=ro", "memory:x", "postgres://u:p@h:x/d"]
    {
        assert!(StoreUrl::parse(text).is_err(), "{text}");
    }
    for text in ["sqlite:ibid.db", "memory:"] {
        assert_eq!(StoreUrl::parse(text).unwrap().to_string(), text);
    }
    for scheme in ["postgres", "postgresql"] {
        let url = StoreUrl::parse(&format!("{scheme}://ibid:hunter2@db:5433/pay?connect_timeout=5")).unwrap();
        assert_eq!(url.to_string(), "postgres://db:5433/pay");
        assert!(!format!("{url:?}").contains("hunter2"), "{url:?}");
    }
    let failure = StoreUrl::parse("postgres://ibid:hunter2@db/pay?hunter2=x").unwrap_err();
    assert!(!failure.to_string().contains("hunter2"), "{failure}");
}

#[test]
fn weak_durability_is_accepted_in_the_file_or_in_the_url() {
    let store = |keys: &str| more(&format!("[store]\nurl = \"postgres://db/pay\"\n{keys}")).store;
    let StoreUrl::Postgres(url) = store("durability = \"weak\"") else { panic!("another kind of store") };
    assert_eq!(url.reveal(), "postgres://db/pay?durability=weak");
    assert_eq!(store("durability = \"durable\""), store(""));
    let refused = refusal("[store]\ndurability = \"perhaps\"");
    assert!(refused.contains("must be \"durable\" or \"weak\""), "{refused}");
}

#[cfg(feature = "mysql")]
#[test]
fn a_mysql_store_is_shown_without_its_password() {
    let url = StoreUrl::parse("mysql://ibid:hunter2@db:3307/pay?connections_max=4").unwrap();
    assert_eq!(url.to_string(), "mysql://db:3307/pay");
    assert!(!format!("{url:?}").contains("hunter2"), "{url:?}");
    for wrong in
        ["mysql://ibid:hunter2@db", "mysql://ibid:hunter2@db/pay?x=y", "mysql://ibid:hunter2@db:x/pay"]
    {
        let failure = StoreUrl::parse(wrong).unwrap_err();
        assert!(!failure.to_string().contains("hunter2"), "{failure}");
    }
}

#[test]
fn a_store_that_this_build_lacks_is_refused_with_its_feature() {
    for (url, feature, is_built) in [
        ("mysql://ibid:hunter2@h/d", "mysql", cfg!(feature = "mysql")),
        ("rediss://h", "redis", cfg!(feature = "redis")),
        ("dynamodb://table", "dynamodb", cfg!(feature = "dynamodb")),
    ] {
        if is_built {
            let sql = feature == "mysql";
            assert_eq!(StoreUrl::parse(url).unwrap().tiers(), Tiers { sql, ..Tiers::ALL });
            continue;
        }
        let refused = StoreUrl::parse(url).unwrap_err().to_string();
        assert!(refused.contains(&format!("--features {feature}")), "{refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}

#[test]
fn a_route_is_refused_with_its_line_if_the_store_lacks_a_tier() {
    let config = more("[[route]]\nmatch = \"POST /later\"\nanswer = \"async\"");
    let reader = Reader::new("ibid.toml", "");
    check_tiers(Tiers::ALL, &config.defaults, &config.routes, &reader);
    assert!(reader.failures().is_none());
    let without_bodies = Tiers { bodies: false, ..Tiers::ALL };
    check_tiers(without_bodies, &config.defaults, &config.routes, &reader);
    let failures = reader.failures().expect("a refusal");
    let messages: Vec<_> = failures.all().iter().map(|failure| failure.message.as_str()).collect();
    let later = "accepts requests to run them later, and the store keeps no requests";
    assert_eq!(messages, [format!("ibid.toml:5: `/later` {later}")]);
}

#[test]
fn the_refusal_of_a_missing_store_names_scheme_and_feature() {
    let refused = lacks("rediss", "redis").to_string();
    assert_eq!(
        refused,
        "error: names a `rediss` store, and this `ibid` was built without it\n\n\
         hint: build it with `--features redis`, or with `all-stores`\n"
    );
}
