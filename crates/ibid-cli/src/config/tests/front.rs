//! Tests of `[front]`.

use super::*;

#[cfg(feature = "redis")]
#[test]
fn the_front_is_a_redis_server_and_its_password_is_not_shown() {
    assert_eq!(more("").front, None);
    let front = more("[front]\nurl = \"redis://u:hunter2@cache:6380/\"\n").front.unwrap();
    assert_eq!(front.url.to_string(), "redis://cache:6380");
    assert_eq!(front.timeout, ibid::front::TIMEOUT);
    assert!(!format!("{front:?}").contains("hunter2"));
    let front = more("[front]\nurl = \"rediss://:hunter2@cache\"\n").front.unwrap();
    assert_eq!(front.url.to_string(), "rediss://cache:6379");
    for url in ["hunter2", "http://hunter2@cache", "redis://", "redis://:hunter2@one,two"] {
        let refused = refusal(&format!("[front]\nurl = \"{url}\"\n"));
        assert!(refused.contains("`url` is not the URL of a Redis server"), "{url}: {refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
    }
    let variables = EnvVars { front: Some("redis://other".into()), ..EnvVars::default() };
    let text = format!("{BASE}[front]\nurl = \"redis://cache\"\ntimeout = \"3ms\"\n");
    let front = Config::read(&GatewayArgs::default(), &variables, "ibid.toml", &text).unwrap().front.unwrap();
    assert_eq!((front.url.to_string().as_str(), front.timeout.as_millis()), ("redis://other:6379", 3));
}

#[cfg(not(feature = "redis"))]
#[test]
fn a_build_without_redis_names_the_feature() {
    let all = failures_of("[front]\nurl = \"redis://u:hunter2@cache/\"\n");
    let refused = format!("{all:?}");
    assert!(refused.contains("--features redis") && !refused.contains("hunter2"), "{refused}");
}

#[test]
fn a_front_needs_a_url() {
    assert!(refusal("[front]\ntimeout = \"1ms\"\n").ends_with("`[front]` needs `url`"));
}
