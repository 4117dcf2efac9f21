//! All inside: reservation, work and completion by one commit.

use std::time::Duration;

use ibid::outcome::{Begin, Outcome};
use ibid::transaction::TxError;
use ibid_core::record::{ErrorCode, State};
use ibid_core::response::Response;
use ibid_core::row::INLINE_BODY_MAX;

use super::harness::{NodeOnDatabase, answer, is_stored, pay, pay_and_charge};
use crate::adapters::{Adapter, PATIENT};
use crate::lossy_database::{Lossy, Reply};

pub(super) async fn every_rule<A: Adapter>(world: &NodeOnDatabase<A>) {
    the_first_runs_and_a_retry_gets_its_answer(world).await;
    what_is_dropped_was_never_there(world).await;
    an_answer_that_is_no_success_undoes_the_work(world).await;
    a_failed_statement_does_not_keep_a_refusal_from_being_stored(world).await;
    a_lost_reply_is_settled_by_the_record(world).await;
    what_others_began_counts(world).await;
    another_generation_leaves_nothing_of_the_one_before_it(world).await;
}

async fn the_first_runs_and_a_retry_gets_its_answer<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut inside = world.begin_inside("first").await;
    assert_eq!(inside.number(), 1);
    pay_and_charge(&mut inside, "first", "ann").await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    assert_eq!((world.payments("first").await, world.effects("first").await.len()), (1, 1));
    // From this process's cache, and from the database.
    for ibid in [&world.ibid, &world.other_node().await] {
        let again = ibid.begin_inside(world.ask("first"), &world.db, PATIENT).await.unwrap();
        let Begin::Skip(Outcome::Completed(kept)) = again else { panic!("{again:?}") };
        assert_eq!(*kept.response, answer(201));
        let other = world.ask_for("first", b"{\"a\":1}");
        let other = ibid.begin_inside(other, &world.db, PATIENT).await.unwrap();
        assert!(matches!(other, Begin::Skip(Outcome::Mismatch)), "{other:?}");
    }
    assert_eq!((world.payments("first").await, world.effects("first").await.len()), (1, 1));
}

async fn what_is_dropped_was_never_there<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut inside = world.begin_inside("dropped").await;
    pay_and_charge(&mut inside, "dropped", "first").await.unwrap();
    drop(inside);
    world.nothing_of("dropped").await;
    assert!(world.record("dropped").await.is_none());
    let mut inside = world.begin_inside("dropped").await;
    assert_eq!(inside.number(), 1);
    pay_and_charge(&mut inside, "dropped", "second").await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    assert!(world.paid_by("dropped", "second").await);
    assert_eq!(world.payments("dropped").await, 1);
}

async fn an_answer_that_is_no_success_undoes_the_work<A: Adapter>(world: &NodeOnDatabase<A>) {
    for (status, stored) in [(402, true), (500, false), (503, false)] {
        let key = format!("{status}");
        let mut inside = world.begin_inside(&key).await;
        pay_and_charge(&mut inside, &key, "ann").await.unwrap();
        let finished = inside.finish(answer(status)).await.unwrap();
        world.nothing_of(&key).await;
        if stored {
            assert!(is_stored(&finished, status), "{finished:?}");
            assert_eq!(world.replay(&key).await, answer(status));
        } else {
            assert!(matches!(finished, Outcome::Released), "{finished:?}");
            assert!(world.record(&key).await.is_none(), "the reservation went with the rest");
            drop(world.begin_inside(&key).await);
        }
    }
}

async fn a_failed_statement_does_not_keep_a_refusal_from_being_stored<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut inside = world.begin_inside("failed").await;
    pay(&mut **inside, "failed", "ann").await.unwrap();
    let wrong = crate::adapters::execute(&mut **inside, "insert into payment (key) values ('failed')", &[]);
    wrong.await.unwrap_err();
    assert!(is_stored(&inside.finish(answer(422)).await.unwrap(), 422));
    world.nothing_of("failed").await;
    assert_eq!(world.replay("failed").await, answer(422));
}

async fn a_lost_reply_is_settled_by_the_record<A: Adapter>(world: &NodeOnDatabase<A>) {
    let replies = [Reply::Lost, Reply::NeverSent];
    let lossy = Lossy::new(A::open(&world.test_db, 2, PATIENT).await, &replies);
    for (key, comes) in [("lost", true), ("never sent", false)] {
        let outcome = world.ibid.begin_inside(world.ask(key), &lossy, PATIENT).await.unwrap();
        let Begin::Run(mut inside) = outcome else { panic!("{outcome:?}") };
        pay_and_charge(&mut inside, key, "ann").await.unwrap();
        let finished = inside.finish(answer(201)).await;
        if comes {
            assert!(is_stored(&finished.unwrap(), 201));
            assert_eq!((world.payments(key).await, world.effects(key).await.len()), (1, 1));
            assert_eq!(world.replay(key).await, answer(201));
        } else {
            assert!(matches!(finished, Err(TxError::NotCommitted)), "{finished:?}");
            world.nothing_of(key).await;
            let mut inside = world.begin_inside(key).await;
            pay(&mut **inside, key, "ann").await.unwrap();
            assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
            assert_eq!(world.payments(key).await, 1);
        }
    }
}

/// A route may be switched from one mode to the other: its records stay valid.
async fn what_others_began_counts<A: Adapter>(world: &NodeOnDatabase<A>) {
    let attempt = world.begin("held").await;
    let begin = || world.ibid.begin_inside(world.ask("held"), &world.db, Duration::from_millis(50));
    let duplicate = begin().await.unwrap();
    assert!(matches!(duplicate, Begin::Skip(Outcome::InFlight { .. })), "{duplicate:?}");
    assert!(matches!(attempt.release(ErrorCode::NotSent).await, Outcome::Released));
    let again = begin().await.unwrap();
    let Begin::Run(mut inside) = again else { panic!("{again:?}") };
    assert_eq!(inside.number(), 2);
    pay(&mut **inside, "held", "ann").await.unwrap();
    drop(inside);
    assert_eq!(world.record("held").await.unwrap().state, State::Retryable);
    let mut inside = world.begin_inside("held").await;
    pay(&mut **inside, "held", "bob").await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    assert!(world.paid_by("held", "bob").await);
}

async fn another_generation_leaves_nothing_of_the_one_before_it<A: Adapter>(world: &NodeOnDatabase<A>) {
    let body_count = || world.number("select count(*) from ibid_body");
    let before = body_count().await;
    for status in [201, 202] {
        // A node that does not have its response in the cache.
        let node = world.other_node().await;
        let outcome = node.begin_inside(world.ask("again"), &world.db, PATIENT).await.unwrap();
        let Begin::Run(inside) = outcome else { panic!("it is to be run: {outcome:?}") };
        assert_eq!(inside.number(), 1, "of its generation");
        // Large enough to be stored apart from its record.
        let large = Response { body: vec![b'x'; 2 * INLINE_BODY_MAX].into(), ..answer(status) };
        assert!(is_stored(&inside.finish(large).await.unwrap(), status));
        assert_eq!(body_count().await, before + 1);
        world.age("key = 'again'").await;
    }
}
