//! The checks of a node that starts: the store's secret, those that its records name, and its identity.

use ibid::engine::StartError;
use ibid::identity::StoreIdentity;
use ibid_core::fingerprint::Secret;

use super::*;

#[tokio::test]
async fn the_secret_is_made_once_and_every_node_of_the_store_uses_it() {
    let world = world(Policy::default()).await;
    let _ = world.run("k").await.finish(created_response()).await;
    let second = Ibid::start(world.store.clone(), Settings::default()).await.expect("it starts");
    let identity = world.ask("k").identity;
    let ask = second.ask((*identity).clone(), world.policy.clone(), Arc::new(Payment("b")));
    assert!(matches!(second.begin(ask).await, Ok(Begin::Skip(Outcome::Completed(_)))));
    let other = second.ask((*identity).clone(), world.policy.clone(), Arc::new(Payment("other")));
    assert!(matches!(second.begin(other).await, Ok(Begin::Skip(Outcome::Mismatch))));
}

#[tokio::test]
async fn a_node_whose_secrets_were_taken_away_does_not_start() {
    let secret = Secret::new("an old secret of some length").expect("long enough");
    let world =
        world_with(Policy::default(), Settings::default().with(|settings| settings.secrets = vec![secret]))
            .await;
    let _ = world.run("k").await.finish(created_response()).await;
    let refused = Ibid::start(world.store.clone(), Settings::default()).await.err();
    assert!(matches!(refused, Some(StartError::MissingSecret(_))));
}

#[tokio::test]
async fn a_start_searches_records_only_for_a_secret_that_was_removed() {
    let secret = |text: &str| Secret::new(text).expect("long enough");
    let with = |secrets: Vec<Secret>| Settings::default().with(|settings| settings.secrets = secrets);
    let (old, new) = ("an old secret of some length", "a new secret of some length");
    let world = world_with(Policy::default(), with(vec![secret(old)])).await;
    let _ = world.run("k").await.finish(created_response()).await;
    for secrets in [vec![secret(old)], vec![secret(new), secret(old)]] {
        Ibid::start(world.store.clone(), with(secrets)).await.expect("it starts");
    }
    assert_eq!(world.store.secret_searches(), 0, "this reads the whole table");
    assert!(Ibid::start(world.store.clone(), with(vec![secret(new)])).await.is_err());
    assert_eq!(world.store.secret_searches(), 1);
}

#[tokio::test]
async fn a_node_without_a_secret_that_records_name_does_not_start() {
    let secret = |text: &str| Secret::new(text).expect("long enough");
    let (old, new) = ("an old secret of some length", "a new secret of some length");
    let with = |texts: &[&str]| {
        Settings::default().with(|settings| settings.secrets = texts.iter().map(|t| secret(t)).collect())
    };
    let world = world_with(Policy::default(), with(&[old])).await;
    let _ = world.run("k").await.finish(created_response()).await;
    let refused = Ibid::start(world.store.clone(), with(&[new])).await.err();
    assert!(matches!(refused, Some(StartError::MissingSecret(id)) if id == secret(old).id()));
    let both = Ibid::start(world.store.clone(), with(&[new, old])).await.expect("it starts");
    let ask = both.ask((*world.ask("k").identity).clone(), world.policy.clone(), Arc::new(Payment("b")));
    assert!(matches!(both.begin(ask).await, Ok(Begin::Skip(Outcome::Completed(_)))));
    world.hands.advance(Duration::from_secs(24 * 3600));
    upkeep::reap_once(&both, Retention::default()).await.expect("the store answers");
    assert!(Ibid::start(world.store.clone(), with(&[new])).await.is_ok(), "once its records have gone");
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_a_start_took_off_the_list_is_put_back() {
    let secret = |text: &str| Secret::new(text).expect("long enough");
    let (old, new) = ("an old secret of some length", "a new secret of some length");
    let with = |texts: &[&str]| {
        Settings::default().with(|settings| settings.secrets = texts.iter().map(|t| secret(t)).collect())
    };
    let world = world_with(Policy::default(), with(&[new, old])).await;
    // No record names the new secret yet, so a node without it takes it off the list.
    Ibid::start(world.store.clone(), with(&[old])).await.expect("it starts");
    let _ = world.run("k").await.finish(created_response()).await;
    tokio::time::sleep(Settings::default().identity_valid_for).await;
    let refused = Ibid::start(world.store.clone(), with(&[old])).await.err();
    assert!(matches!(refused, Some(StartError::MissingSecret(id)) if id == secret(new).id()), "{refused:?}");
}

#[tokio::test]
async fn a_store_used_with_another_identity_is_refused() {
    let world = world(Policy::default()).await;
    let other = Settings::default().with(|settings| settings.identity = StoreIdentity::new("header:x"));
    let refused = Ibid::start(world.store.clone(), other).await.err();
    assert!(matches!(refused, Some(StartError::Identity(_))));
}
