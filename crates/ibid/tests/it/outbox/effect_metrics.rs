//! The counters of the outbox match the events.

use ibid::telemetry::{
    DEAD_LETTERS, EFFECTS_DEAD, EFFECTS_DONE, EFFECTS_ENQUEUED, EFFECTS_LOST, EFFECTS_RETRIED,
};
use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;

#[tokio::test]
async fn every_step_of_an_effect_is_counted() {
    // A recorder for this thread only, on which all tasks of this test run.
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _counts = metrics::set_default_local_recorder(&recorder);
    let counted = |name: &str| {
        let page = page.render();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |count| count.parse::<u64>().expect("a counter"))
    };

    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |call| match (call.name.as_str(), call.tries) {
        ("refused", _) => CallOutcome::Refused { why: "card expired".into() },
        ("slow", 1) => not_made("busy"),
        _ => made_outcome(),
    });
    let effect = |name: &str| NewEffect::new(name, "charge", "");
    world.pay("k", [effect("plain"), effect("slow"), effect("refused")]).await;
    let mut undone = world.begin("undone").await;
    let mut inside = undone.join_tx(world.tx().await).await.unwrap();
    inside.enqueue(effect("rolled back")).await.unwrap();
    drop(inside);
    let worker = world.worker(&provider);
    worker.run_once().await.unwrap();
    world.pass(3600);
    worker.run_once().await.unwrap();
    // An effect whose worker went silent: the next worker takes it over, and the first is too late.
    world.pay("silent", [effect("taken").repeatable()]).await;
    let (gate, silent) = world.silent_worker().await;
    world.pass(61);
    worker.run_once().await.unwrap();
    world.pass(3600);
    worker.run_once().await.unwrap();
    gate.open();
    silent.await.unwrap();

    let counts = [EFFECTS_ENQUEUED, EFFECTS_DONE, EFFECTS_RETRIED, EFFECTS_DEAD, EFFECTS_LOST].map(counted);
    assert_eq!(counts, [4, 3, 2, 1, 1], "{}", page.render());
}

#[tokio::test]
async fn effects_that_need_an_operator_count_as_dead_letters() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _counts = metrics::set_default_local_recorder(&recorder);
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |call| match call.name.as_str() {
        "refused" => CallOutcome::Refused { why: "card expired".into() },
        // No lookup exists for one; the other is looked up after a pause.
        "unsure" | "asked" => CallOutcome::Uncertain { why: "reset".into() },
        _ => made_outcome(),
    });
    let effect = |name: &str| NewEffect::new(name, "charge", "");
    let asked = NewEffect::new("asked", "charge", "").verified();
    world.pay("k", [effect("plain"), effect("refused"), effect("unsure"), asked]).await;
    assert_eq!(world.worker(&provider).run_once().await.unwrap().dead, 2);
    let letters = async || {
        reap_once(&world.ibid, Retention::default()).await.unwrap();
        let page = page.render();
        let of = |line: &str| Some(line.strip_prefix(DEAD_LETTERS)?.to_owned());
        let mut lines: Vec<String> = page.lines().filter_map(of).collect();
        lines.sort();
        lines
    };
    assert_eq!(letters().await, ["{kind=\"effects\"} 2", "{kind=\"records\"} 0"]);
    for effect in world.effects().await.iter().filter(|effect| ["refused", "unsure"].contains(&&*effect.name))
    {
        Operator::new(&world.ibid).discard(effect.seq, &because("settled by phone")).await.unwrap();
    }
    assert_eq!(letters().await, ["{kind=\"effects\"} 0", "{kind=\"records\"} 0"]);
}
