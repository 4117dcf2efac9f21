//! Effects of a store that is copied: they run once, in order, in the target, and a late worker of the source is refused.

use std::sync::Arc;

use ibid::copy::{CopyEnd, CopyError, CopyStep, cancel, copy};
use ibid::outbox::WorkerRound;
use ibid::store::memory::MemoryStore;
use ibid_core::effect::NewEffect;
use ibid_core::machine::EffectState::{Claimed, Done, Queued};
use ibid_core::record::State;
use ibid_core::store::Store;

use super::harness::{NodeOnSqlite, Provider, made_outcome};

fn charge(name: &str) -> NewEffect {
    NewEffect::new(name, "charge", name.to_owned()).repeatable()
}

fn end(store: Arc<dyn Store>, display_url: &str) -> CopyEnd {
    CopyEnd::new(store, display_url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copied_effects_run_once_and_in_order() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("source", |_| made_outcome());
    world.pay("before", [charge("done")]).await;
    world.drain(&provider).await;
    world.pay("first", ["a", "b", "c"].map(|name| charge(name).ordered_by("order-7"))).await;
    world.owe("owed", charge("owed").owing()).await;
    let empty = world.empty_beside().await;
    let target = end(empty.store(), "target");
    let before = world.effects().await;
    copy(&end(world.ibid.store().clone(), "source"), &target, |_| {}).await.expect("it is copied");
    drop(target);

    let copied = empty.start().await;
    let after = copied.effects().await;
    assert_eq!(before, after, "with their numbers, versions, payloads and instants");
    let late = world.worker(&provider).run_once().await.expect("it looks");
    assert_eq!(late, WorkerRound::default(), "no worker of the source claims anything");
    let provider = Provider::new("target", |_| made_outcome());
    copied.drain(&provider).await;
    let calls: Vec<String> = provider.calls().iter().map(|call| call.name.clone()).collect();
    let ordered: Vec<&String> = calls.iter().filter(|name| *name != "owed").collect();
    assert_eq!(ordered, ["a", "b", "c"]);
    assert_eq!((calls.len(), world.effects().await), (4, before), "each is called once");
    assert_eq!(copied.record("owed").await.state, State::Completed);
    // The next number is behind the copied ones.
    copied.pay("new", [charge("new")]).await;
    let all = copied.effects().await;
    assert_eq!(all.last().map(|effect| effect.name.as_str()), Some("new"));
    assert_eq!(all.len(), after.len() + 1);
}

/// T1 (a worker of the source) is silent past its claim; the effect is copied with another version; T1 comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_worker_of_the_source_is_refused() {
    let world = NodeOnSqlite::new().await;
    world.owe("owed", charge("owed").owing()).await;
    let (gate, running) = world.silent_worker().await;
    let empty = world.empty_beside().await;
    let target = end(empty.store(), "target");
    let on_step = |step| {
        if let CopyStep::Running { .. } = step {
            world.pass(20);
        }
    };
    copy(&end(world.ibid.store().clone(), "source"), &target, on_step).await.expect("it is copied");
    drop(target);
    gate.open();
    let round = running.await.expect("the worker ends");
    assert_eq!((round.done, round.lost), (0, 1), "it meets another version");
    let copied = empty.start().await;
    assert_eq!(copied.only_effect().await.state, Claimed, "as lapsed as it is in the source");
    assert_eq!(copied.record("owed").await.state, State::Pending);
    let provider = Provider::new("target", |_| made_outcome());
    // The first look settles the lapse, and the next one, after a pause, makes the call.
    for _ in 0..2 {
        copied.worker(&provider).run_once().await.expect("it looks");
        copied.pass(60);
    }
    assert_eq!(copied.only_effect().await.state, Done);
    assert_eq!(copied.record("owed").await.state, State::Completed);
    assert_eq!(
        provider.calls()[0].downstream_key,
        gate.provider.calls()[0].downstream_key,
        "under the same key"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_effects_need_a_target_with_an_outbox() {
    let world = NodeOnSqlite::new().await;
    world.pay("k", [charge("open")]).await;
    let source = end(world.ibid.store().clone(), "source");
    let memory = || end(Arc::new(MemoryStore::new(world.clock())), "memory");
    let refused = copy(&source, &memory(), |_| {}).await;
    assert!(matches!(refused, Err(CopyError::Unsupported { count: 1, .. })), "{refused:?}");
    assert!(world.ibid.is_identity_active(), "the source was not closed");
    assert_eq!(world.only_effect().await.state, Queued);
    world.drain(&Provider::new("source", |_| made_outcome())).await;
    let target = memory();
    let report = copy(&source, &target, |_| {}).await.expect("it is copied");
    assert_eq!((report.left_behind, report.rows[2].1), (1, 1));
    assert!(matches!(cancel(&source, &target).await, Err(CopyError::Ended)));
}
