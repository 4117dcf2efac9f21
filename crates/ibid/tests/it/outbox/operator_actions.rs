//! An operator lists effects, retries them and discards them.

use ibid::operator::OperatorError;
use ibid_core::change::HistoryKind;
use ibid_core::effect::EffectFilter;

use super::*;

#[tokio::test]
async fn an_operator_moves_only_dead_or_unknown_effects() {
    let world = NodeOnSqlite::new().await;
    world.owe("k", NewEffect::new("charge", "charge", "").owing()).await;
    let seq = world.only_effect().await.seq;
    let refused = Operator::new(&world.ibid).retry(seq, &because("why not")).await;
    assert!(matches!(refused, Err(OperatorError::EffectNotNow(Queued))), "{refused:?}");
    let absent = Operator::new(&world.ibid).discard(seq + 1, &because("no reason")).await;
    assert!(matches!(absent, Err(OperatorError::NoSuchEffect(_))), "{absent:?}");

    let provider = Provider::new("w", |_| CallOutcome::Refused { why: "no".into() });
    world.worker(&provider).run_once().await.unwrap();
    Operator::new(&world.ibid).discard(seq, &because("refunded by hand")).await.unwrap();
    assert_eq!(world.only_effect().await.state, Discarded);
    let history = world.ibid.store().browse().unwrap().history(world.record("k").await.id).await.unwrap();
    let lines: Vec<_> = history.iter().map(|line| (line.what, line.detail.as_str())).collect();
    assert!(
        lines.contains(&(
            HistoryKind::Operator,
            "effect `charge` discarded, dead to discarded, by ann: refunded by hand"
        )),
        "{lines:?}"
    );
    assert!(matches!(
        Operator::new(&world.ibid).retry(seq, &because("no reason")).await,
        Err(OperatorError::EffectNotNow(Discarded))
    ));
}

#[tokio::test]
async fn an_effect_discarded_during_verify_leaves_its_record_unknown() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |_| CallOutcome::Uncertain { why: "reset".into() });
    world.owe("k", NewEffect::new("charge", "charge", "").verified().owing()).await;
    world.worker(&provider).run_once().await.unwrap();
    assert_eq!(world.record("k").await.state, State::Pending);
    Operator::new(&world.ibid).discard(world.only_effect().await.seq, &because("give up")).await.unwrap();
    assert_eq!(world.record("k").await.state, State::Unknown);
}

#[tokio::test]
async fn effects_are_listed_by_state_by_record_and_by_page() {
    let world = NodeOnSqlite::new().await;
    world.pay("a", [NewEffect::new("x", "charge", ""), NewEffect::new("y", "mail", "")]).await;
    world.pay("b", [NewEffect::new("x", "charge", "")]).await;
    let provider = Provider::new("w", |_| made_outcome());
    world.worker(&provider).run_once().await.unwrap();
    let list = |filter| async { Operator::new(&world.ibid).effects(filter).await.unwrap().0 };
    let usual = EffectFilter::default;
    assert_eq!(list(usual()).await.len(), 3);
    assert_eq!(list(usual().with(|filter| filter.state = Some(Done))).await.len(), 2);
    let record = world.record("a").await.id;
    assert_eq!(list(usual().with(|filter| filter.record = Some(record))).await.len(), 2);
    let queued = list(usual().with(|filter| {
        filter.record = Some(record);
        filter.state = Some(Queued);
    }))
    .await;
    assert_eq!(queued.iter().map(|effect| &*effect.kind).collect::<Vec<_>>(), ["mail"]);
    let first = list(usual().with(|filter| filter.limit = 1)).await;
    let rest = list(usual().with(|filter| filter.after = first[0].seq)).await;
    assert_eq!((first.len(), rest.len()), (1, 2));
}
