//! Reserve first, then finish in the caller's transaction: the rules for an attempt in this mode.

use ibid::outcome::{Begin, Outcome};
use ibid::transaction::{Database, TxError};
use ibid::upkeep::{self, Retention};
use ibid_core::effect::NewEffect;
use ibid_core::record::{ErrorCode, State};
use ibid_core::response::Response;
use ibid_core::sql::{Dialect, Param, SqlTx};

use super::harness::{NodeOnDatabase, answer, is_stored, pay, pay_and_charge};
use crate::adapters::{Adapter, PATIENT, execute};
use crate::lossy_database::{Lossy, Reply};

pub(super) async fn every_rule<A: Adapter>(world: &NodeOnDatabase<A>) {
    business_row_effect_and_answer_commit_together(world).await;
    a_dropped_transaction_leaves_its_attempt_usable(world).await;
    a_lost_lease_is_refused_before_any_work(world).await;
    an_answer_that_is_no_success_undoes_the_work(world).await;
    a_lost_reply_is_settled_by_the_record(world).await;
    who_gives_the_answer_must_be_clear(world).await;
    an_owed_answer_is_pending(world).await;
    an_effect_has_its_name_alone(world).await;
    an_answer_too_large_to_repeat_is_refused(world).await;
    an_attempt_that_has_ended_goes_nowhere(world).await;
    reaping_a_record_keeps_the_row_that_refers_to_it(world).await;
}

async fn business_row_effect_and_answer_commit_together<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut attempt = world.begin("together").await;
    let id = attempt.record_id();
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    assert_eq!((inside.number(), inside.record_id()), (1, id));
    pay_and_charge(&mut inside, "together", "ann").await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    assert!(is_stored(attempt.outcome().unwrap(), 201));
    drop(attempt);

    for _ in 0..2 {
        assert_eq!(world.payments("together").await, 1);
        let effects = world.effects("together").await;
        assert_eq!(effects.len(), 1);
        assert_eq!((&effects[0].payload[..], effects[0].owes), (&b"42"[..], false));
        assert_eq!(world.replay("together").await, answer(201));
        assert!(matches!(
            world.ibid.begin(world.ask("together")).await.unwrap(),
            Begin::Skip(Outcome::Completed(_))
        ));
    }
    let other = world.ibid.begin(world.ask_for("together", b"{\"a\":1}")).await.unwrap();
    assert!(matches!(other, Begin::Skip(Outcome::Mismatch)));
}

async fn a_dropped_transaction_leaves_its_attempt_usable<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut attempt = world.begin("dropped").await;
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    pay_and_charge(&mut inside, "dropped", "first").await.unwrap();
    drop(inside);
    world.nothing_of("dropped").await;
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    pay_and_charge(&mut inside, "dropped", "second").await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    assert!(world.paid_by("dropped", "second").await);
    assert_eq!((world.payments("dropped").await, world.effects("dropped").await.len()), (1, 1));

    let mut attempt = world.begin("given up").await;
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    pay_and_charge(&mut inside, "given up", "first").await.unwrap();
    drop(inside);
    assert!(matches!(attempt.release(ErrorCode::NotSent).await, Outcome::Released));
    world.nothing_of("given up").await;
    assert_eq!(world.begin("given up").await.number(), 2);
}

async fn a_lost_lease_is_refused_before_any_work<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut zombie = world.begin("lapsed").await;
    world.lapse("lapsed").await;
    let bob = world.other_node().await;
    let mut taken = world.begin_on(&bob, "lapsed").await;
    assert_eq!(taken.number(), 2);
    for _ in 0..2 {
        let refused = zombie.join_tx(world.tx().await).await;
        assert!(matches!(refused, Err(TxError::LeaseLost)));
    }
    let mut inside = taken.join_tx(world.tx().await).await.unwrap();
    pay(&mut *inside, "lapsed", "bob").await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    assert!(matches!(zombie.join_tx(world.tx().await).await, Err(TxError::LeaseLost)));
    // A late release by a zombie that did nothing changes nothing.
    assert!(matches!(zombie.release(ErrorCode::NotSent).await, Outcome::Superseded(_)));
    assert!(world.paid_by("lapsed", "bob").await);
    assert_eq!(world.payments("lapsed").await, 1);
    assert_eq!(world.replay("lapsed").await, answer(201));
}

async fn an_answer_that_is_no_success_undoes_the_work<A: Adapter>(world: &NodeOnDatabase<A>) {
    let wait = Response { headers: vec![("retry-after".to_owned(), "1".into())], ..answer(409) };
    for (key, said, stored) in [
        ("402", answer(402), true),
        ("409", answer(409), true),
        ("409 later", wait, false),
        ("500", answer(500), false),
        ("503", answer(503), false),
    ] {
        let mut attempt = world.begin(key).await;
        let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
        pay_and_charge(&mut inside, key, "ann").await.unwrap();
        let finished = inside.finish(said.clone()).await.unwrap();
        world.nothing_of(key).await;
        if stored {
            assert!(is_stored(&finished, said.status), "{key}: {finished:?}");
            assert_eq!(world.replay(key).await, said);
        } else {
            assert!(matches!(finished, Outcome::Released), "{key}: {finished:?}");
            assert_eq!(world.begin(key).await.number(), 2, "{key}");
        }
    }
}

async fn a_lost_reply_is_settled_by_the_record<A: Adapter>(world: &NodeOnDatabase<A>) {
    let replies = [Reply::Lost, Reply::NeverSent];
    let lossy = Lossy::new(A::open(&world.test_db, 2, PATIENT).await, &replies);
    let mut attempt = world.begin("lost").await;
    let mut inside = attempt.join_tx(lossy.begin().await.unwrap()).await.unwrap();
    pay_and_charge(&mut inside, "lost", "ann").await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    assert_eq!((world.payments("lost").await, world.effects("lost").await.len()), (1, 1));
    assert_eq!(world.replay("lost").await, answer(201));

    let mut attempt = world.begin("never sent").await;
    let mut inside = attempt.join_tx(lossy.begin().await.unwrap()).await.unwrap();
    pay_and_charge(&mut inside, "never sent", "ann").await.unwrap();
    assert!(matches!(inside.finish(answer(201)).await, Err(TxError::NotCommitted)));
    assert!(matches!(attempt.outcome(), Some(Outcome::Released)));
    world.nothing_of("never sent").await;
    assert_eq!(world.begin("never sent").await.number(), 2);
}

async fn who_gives_the_answer_must_be_clear<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut attempt = world.begin("who").await;
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    pay_and_charge(&mut inside, "who", "ann").await.unwrap();
    assert!(matches!(inside.owe().await, Err(TxError::AnswerConflict)));
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    pay(&mut *inside, "who", "ann").await.unwrap();
    inside.enqueue(NewEffect::new("charge", "charge", "").owing()).await.unwrap();
    assert!(matches!(inside.finish(answer(201)).await, Err(TxError::AnswerConflict)));
    world.nothing_of("who").await;
}

async fn an_owed_answer_is_pending<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut attempt = world.begin("owed").await;
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    pay(&mut *inside, "owed", "ann").await.unwrap();
    inside.enqueue(NewEffect::new("charge", "charge", "").owing()).await.unwrap();
    assert!(matches!(inside.owe().await.unwrap(), Outcome::AwaitingEffect));
    drop(attempt);
    let record = world.record("owed").await.unwrap();
    assert_eq!((record.state, record.due_at, record.flags.owed), (State::Pending, None, true));
    assert!(matches!(
        world.ibid.begin(world.ask("owed")).await.unwrap(),
        Begin::Skip(Outcome::InFlight { .. })
    ));
    assert_eq!((world.payments("owed").await, world.effects("owed").await.len()), (1, 1));
}

async fn an_effect_has_its_name_alone<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut attempt = world.begin("names").await;
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    inside.enqueue(NewEffect::new("charge", "charge", "1").ordered_by("account 7")).await.unwrap();
    let twice = inside.enqueue(NewEffect::new("charge", "charge", "2")).await;
    assert!(matches!(twice, Err(TxError::EffectExists(name)) if name == "charge"));
    inside.enqueue(NewEffect::new("mail", "mail", "3")).await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    let effects = world.effects("names").await;
    let payloads: Vec<_> = effects.iter().map(|effect| &effect.payload[..]).collect();
    assert_eq!(payloads, [b"1", b"3"]);
    assert_ne!(effects[0].downstream_key, effects[1].downstream_key);
}

async fn an_answer_too_large_to_repeat_is_refused<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut attempt = world.begin("large").await;
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    pay_and_charge(&mut inside, "large", "ann").await.unwrap();
    let large = Response::plain(201, "text/plain", "x".repeat((1 << 20) + 1));
    assert!(matches!(inside.finish(large).await, Err(TxError::ResponseTooLarge)));
    world.nothing_of("large").await;
    let inside = attempt.join_tx(world.tx().await).await.unwrap();
    let largest = Response::plain(201, "text/plain", "x".repeat(1 << 20));
    assert!(is_stored(&inside.finish(largest.clone()).await.unwrap(), 201));
    assert_eq!(world.replay("large").await, largest);
}

async fn an_attempt_that_has_ended_goes_nowhere<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut attempt = world.begin("ended").await;
    let inside = attempt.join_tx(world.tx().await).await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    assert!(matches!(attempt.join_tx(world.tx().await).await, Err(TxError::Ended)));
}

async fn reaping_a_record_keeps_the_row_that_refers_to_it<A: Adapter>(world: &NodeOnDatabase<A>) {
    let ride = "create table ride (key text, record uuid, \
                foreign key (record) references ibid_record (id) on delete set null)";
    world.change_schema(ride).await;
    let ride = match world.tx().await.dialect() {
        Dialect::Postgres => "insert into ride (key, record) values ($1, encode($2::bytea, 'hex')::uuid)",
        Dialect::Sqlite | Dialect::Mysql => "insert into ride (key, record) values ($1, $2)",
    };
    let mut attempt = world.begin("ride").await;
    let id = attempt.record_id();
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    execute(&mut *inside, ride, &[Param::Text("ride"), Param::Bytes(id.as_bytes())]).await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    let mut inside = world.begin_inside("all inside").await;
    let id = inside.record_id();
    execute(&mut **inside, ride, &[Param::Text("all inside"), Param::Bytes(id.as_bytes())]).await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));

    world.age("key in ('ride', 'all inside')").await;
    assert_eq!(upkeep::reap_once(&world.ibid, Retention::default()).await.unwrap().removed, 2);
    assert!(world.record("ride").await.is_none());
    assert_eq!(world.number("select count(*) from ride where record is null").await, 2);
    world.change_schema("drop table ride").await;
}
