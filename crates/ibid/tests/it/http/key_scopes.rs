//! The scope of a key: its tenant, endpoint, principal and router.

use ibid::http::PrincipalSource;
use ibid_core::policy::BindRule;

use super::*;

#[tokio::test]
async fn tenants_do_not_see_or_touch_each_others_keys() {
    let world = world(Policy::default()).await;
    let of = |tenant: &str| {
        let request = Request::post("/pay").header("x-tenant", tenant).header("idempotency-key", "k");
        Post { request, body: Body::from("b") }
    };
    assert_eq!(&world.send(of("a")).await.body[..], b"run 1: b");
    assert_eq!(&world.send(of("b")).await.body[..], b"run 2: b");
    assert_eq!(&world.send(of("a")).await.body[..], b"run 1: b");
    let nobody = Post { request: Request::post("/pay").header("idempotency-key", "k"), body: Body::empty() };
    let refused = world.send(nobody).await;
    assert_eq!((refused.status, refused.problem().as_str()), (401, "tenant-missing"));

    let page = |tenant: &str, key: &str| Post {
        request: Request::get(format!("/.ibid/keys/{key}?method=POST&path=/pay")).header("x-tenant", tenant),
        body: Body::empty(),
    };
    for (tenant, body) in [("a", b"run 1: b"), ("b", b"run 2: b")] {
        assert_eq!(world.send(page(tenant, "k")).await.status, 200);
        assert_eq!(&world.send(page(tenant, "k/response")).await.body[..], body);
    }
    for (tenant, key) in [("c", "k"), ("a", "x"), ("c", "k/response"), ("a", "x/response")] {
        assert_eq!(world.send(page(tenant, key)).await.status, 404, "{tenant} {key}");
    }
}

#[tokio::test]
async fn a_key_on_another_endpoint_mismatches_only_in_tenant_scope() {
    let world = world(Policy::default()).await;
    world.send(pay("k")).await;
    let elsewhere = || post_to("/other").with("idempotency-key", "k");
    assert!(!world.send(elsewhere()).await.is_replay());
    assert_eq!(world.runs(), 2);

    let stripe = world_with(Policy::stripe(), vec![], Settings::default()).await;
    stripe.send(pay("k")).await;
    let refused = stripe.send(elsewhere()).await;
    let body: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!((refused.status, body["error"]["type"].as_str()), (400, Some("idempotency_error")));
    assert_eq!(stripe.runs(), 1);
}

#[tokio::test]
async fn a_key_bound_to_a_principal_is_separate_from_anothers() {
    let policy = Policy::default().with(|policy| policy.bind = BindRule::Principal);
    let world = world(policy.clone()).await;
    let routes = Routes::new(policy, vec![]).expect("good routes");
    let principals = PrincipalSource::by(|head| match head.headers.get("x-user") {
        Some(user) => Ok(user.to_str().map_err(|_| MissingIdentityError)?.to_owned()),
        None => Err(MissingIdentityError),
    });
    let layer = IdempotencyLayer::with_routes(world.ibid.clone(), TenantSource::only(), routes)
        .principals(principals);
    let router = Router::new().route("/pay", post(handle)).with_state(world.api.clone());
    let app = layer.layer(router);
    let send = async |post: Post| read(app.clone().oneshot(post.build()).await).await;
    assert_eq!(&send(pay("k").with("x-user", "ann")).await.body[..], b"run 1: b");
    assert_eq!(&send(pay("k").with("x-user", "bob")).await.body[..], b"run 2: b");
    assert!(send(pay("k").with("x-user", "ann")).await.is_replay());
    assert_eq!(send(pay("k")).await.status, 401, "no tenant");
    let page = |user: &str| Post {
        request: Request::get("/.ibid/keys/k?method=POST&path=/pay").header("x-user", user),
        body: Body::empty(),
    };
    assert_eq!((send(page("ann")).await.status, send(page("eve")).await.status), (200, 404));
}

#[tokio::test]
async fn nested_routers_do_not_take_each_others_records() {
    let world = world(Policy::default()).await;
    let guarded = || {
        let layer = IdempotencyLayer::new(world.ibid.clone(), TenantSource::only());
        Router::new().route("/pay", post(handle)).with_state(world.api.clone()).layer(layer)
    };
    let app = Router::new().nest("/a", guarded()).nest("/b", guarded());
    let send = async |path: &str| {
        let request = post_to(path).with("idempotency-key", "k").build();
        read(app.clone().oneshot(request).await).await
    };
    assert_eq!(&send("/a/pay").await.body[..], b"run 1: b");
    assert_eq!(&send("/b/pay").await.body[..], b"run 2: b");
    assert!(send("/a/pay").await.is_replay());
}
