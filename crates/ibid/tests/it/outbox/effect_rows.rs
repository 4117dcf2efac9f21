//! The rows of effects on both databases: tenants, texts of handlers, the view for people, codes of newer versions, retention.

use std::sync::Arc;
use std::time::Duration;

use ibid::evidence::EvidenceResult;
use ibid::operator::Operator;
use ibid::outbox::{CallOutcome, CallResult, NewEffect, WorkerRound};
use ibid::outcome::{Begin, Outcome};
use ibid::transaction::{Database, TxError};
use ibid::upkeep::{Retention, reap_once};
use ibid_core::effect::{EffectFilter, PROVIDER_ID_BYTES_MAX};
use ibid_core::evidence::EffectRef;
use ibid_core::key::Key;
use ibid_core::machine::EffectState;
use ibid_core::policy::Policy;
use ibid_core::response::Response;
use ibid_core::scope::{Identity, Operation, Tenant};
use ibid_core::sql::{Dialect, OwnedTx as _, SqlTx as _, Statement, Type};

use super::every_database::{Psp, Site, charge, executed_observation, on_every_database};
use super::harness::{NodeOnSqlite, ask, begin, effects_sql, made_outcome};
use super::harness::{Nothing, Provider};

on_every_database!(
    a_dead_effect_blocks_only_its_own_tenants_aggregate,
    texts_of_handlers_never_keep_a_result_from_being_written,
    an_effect_whose_name_can_not_be_stored_is_refused,
    the_view_shows_names_and_readable_instants,
    a_state_of_a_newer_version_hides_only_its_own_effect,
    dead_letters_are_listed_and_counted,
    a_payload_goes_with_the_records_response,
    a_payload_goes_when_its_key_is_used_again,
);

async fn a_dead_effect_blocks_only_its_own_tenants_aggregate<D: Database + Clone + 'static>(site: Site<D>) {
    let psp = Psp::new([CallOutcome::Refused { why: "no".into() }]);
    let worker = site.worker(&psp);
    pay_as(&site, "tenant-a", "k1").await;
    assert_eq!(worker.run_once().await.unwrap(), WorkerRound::default().with(|round| round.dead = 1));
    pay_as(&site, "tenant-a", "k2").await;
    pay_as(&site, "tenant-b", "k3").await;
    assert_eq!(worker.run_once().await.unwrap(), WorkerRound::default().with(|round| round.done = 1));
    let effects = Operator::new(&site.ibid).effects(EffectFilter::default()).await.unwrap().0;
    let states: Vec<_> = effects.iter().map(|effect| (&*effect.tenant, effect.state.name())).collect();
    assert_eq!(states, [("tenant-a", "dead"), ("tenant-a", "queued"), ("tenant-b", "done")]);
}

/// Makes a payment of this tenant whose effect belongs to the order 7.
async fn pay_as<D: Database>(site: &Site<D>, tenant: &str, key: &str) {
    let identity = Identity {
        tenant: Tenant::new(tenant).unwrap(),
        operation: Operation { method: "POST".into(), path: "/pay".into() },
        key: Key::stored(key).unwrap(),
    };
    let ask = site.ibid.ask(identity, Arc::new(Policy::default()), Arc::new(Nothing));
    let Begin::Run(mut attempt) = site.ibid.begin(ask).await.unwrap() else { panic!("it is new") };
    let mut inside = attempt.join_tx(site.database.begin().await.unwrap()).await.unwrap();
    inside.enqueue(charge().ordered_by("order-7")).await.unwrap();
    let answer = Response::plain(201, "text/plain", "accepted".to_owned());
    assert!(matches!(inside.finish(answer).await.unwrap(), Outcome::Completed(_)));
}

async fn texts_of_handlers_never_keep_a_result_from_being_written<D: Database + Clone + 'static>(
    site: Site<D>,
) {
    let long = format!("ch_\0{}", "9".repeat(3000));
    let made = CallResult::default().with(|made| made.provider_id = Some(long.clone()));
    let psp = Psp::new([
        CallOutcome::NotMade { why: format!("\0busy{}", "\u{fffd}".repeat(2000)), after: None },
        CallOutcome::Accepted { provider_id: long.clone() },
        CallOutcome::Made(made),
    ]);
    site.pay("k", charge()).await;
    let worker = site.worker(&psp);
    assert_eq!(worker.run_once().await.unwrap().again, 1, "it is certain that no call was made");
    let error = site.only_effect().await.last_error.unwrap();
    assert!(error.starts_with("busy\u{fffd}") && error.len() < 1100, "{error}");
    site.lapse().await;
    assert_eq!(worker.run_once().await.unwrap().dead, 1);
    let stored = site.only_effect().await.provider_id.unwrap();
    assert!(stored.starts_with("ch_9") && stored.len() <= PROVIDER_ID_BYTES_MAX + 3, "{stored}");
    // A webhook that names the whole id finds it.
    let at = EffectRef::ProviderId { kind: "charge".into(), id: long.clone() };
    assert_eq!(site.hear("evt", &at, executed_observation(201, "ch_9")).await, EvidenceResult::Settled);
    assert_eq!(site.only_effect().await.state, EffectState::Done);
}

async fn an_effect_whose_name_can_not_be_stored_is_refused<D: Database + Clone + 'static>(site: Site<D>) {
    let mut attempt = begin(&site.ibid, "k").await;
    let mut inside = attempt.join_tx(site.database.begin().await.unwrap()).await.unwrap();
    let long = "n".repeat(3000);
    for effect in [
        NewEffect::new(long.clone(), "charge", ""),
        NewEffect::new("a\0b", "charge", ""),
        NewEffect::new("a", "charge\0", ""),
        charge().ordered_by(long),
    ] {
        let refused = inside.enqueue(effect).await.unwrap_err();
        assert!(matches!(refused, TxError::InvalidEffect(_)), "{refused:?}");
    }
    // The transaction is still usable.
    inside.enqueue(charge()).await.unwrap();
    let answer = Response::plain(201, "text/plain", "accepted".to_owned());
    assert!(matches!(inside.finish(answer).await.unwrap(), Outcome::Completed(_)));
    assert_eq!(site.only_effect().await.name, "charge");
}

async fn the_view_shows_names_and_readable_instants<D: Database + Clone + 'static>(site: Site<D>) {
    site.pay("k", charge().ordered_by("order-7")).await;
    for state in EffectState::ALL {
        sql(&site, &format!("update ibid_effect set state = {}", state.code())).await;
        assert_eq!(texts(&site, "select state from ibid_effects").await, [state.name()]);
    }
    sql(
        &site,
        "update ibid_effect set state = 99, created_at = 1700000000123456, done_at = 1700000000000000",
    )
    .await;
    assert_eq!(texts(&site, "select state from ibid_effects").await, ["99"], "a code of a newer version");
    // PostgreSQL has a time zone in front of it, SQLite's text is UTC.
    let instant = "select case when cast(created_at as text) like '2023-11-1_%:13:20.123%' then 'readable' else
                   cast(created_at as text) end from ibid_effects where due_at is not null and called_at is null";
    assert_eq!(texts(&site, instant).await, ["readable"]);
    let rest = "select kind || ' ' || name || ' ' || aggregate || ' ' || tries from ibid_effects";
    assert_eq!(texts(&site, rest).await, ["charge charge order-7 0"]);
    let rules = texts(&site, "select rules from ibid_effects").await;
    assert!(rules[0].contains("\"safety\":\"once\""), "{rules:?}");
}

async fn a_state_of_a_newer_version_hides_only_its_own_effect<D: Database + Clone + 'static>(site: Site<D>) {
    for key in ["a", "b", "c"] {
        site.pay(key, charge()).await;
    }
    let list = async |limit| {
        let filter = EffectFilter::default().with(|filter| filter.limit = limit);
        let (effects, next) = Operator::new(&site.ibid).effects(filter).await.unwrap();
        (effects.len(), next.is_some())
    };
    sql(&site, "update ibid_effect set state = 99 where seq = (select min(seq) from ibid_effect)").await;
    sql(&site, "update ibid_effect_call set rules = '{\"safety\":\"prayed\"}' where seq = (select max(seq) from ibid_effect)")
        .await;
    assert_eq!(list(100).await, (1, false));
    assert_eq!(list(1).await, (0, true), "the cursor moves past it");
    let psp = Psp::new([]);
    assert_eq!(
        site.worker(&psp).run_once().await.unwrap(),
        WorkerRound::default().with(|round| round.done = 1)
    );
    assert_eq!(psp.calls(), 1);
}

async fn dead_letters_are_listed_and_counted<D: Database + Clone + 'static>(site: Site<D>) {
    let refused = || CallOutcome::Refused { why: "no".into() };
    let psp = Psp::new([refused(), CallOutcome::Uncertain { why: "reset".into() }]);
    for key in ["a", "b", "c"] {
        site.pay(key, charge()).await;
        site.worker(&psp).run_once().await.unwrap();
    }
    let list = async |filter| {
        let (effects, _) = Operator::new(&site.ibid).effects(filter).await.unwrap();
        effects.iter().map(|effect| effect.state.name()).collect::<Vec<_>>()
    };
    let all = EffectFilter::default();
    let record = Some(ask(&site.ibid, "a").id);
    assert_eq!(list(all.clone().with(|filter| filter.dead_letter = true)).await, ["dead", "unknown"]);
    assert_eq!(
        list(all.clone().with(|filter| {
            filter.dead_letter = true;
            filter.record = record;
        }))
        .await,
        ["dead"]
    );
    assert_eq!(list(all.clone().with(|filter| filter.state = Some(EffectState::Done))).await, ["done"]);
    assert_eq!(
        list(all.clone().with(|filter| {
            filter.state = Some(EffectState::Done);
            filter.record = record;
        }))
        .await,
        [""; 0]
    );
    assert_eq!(list(all).await, ["dead", "unknown", "done"]);
    assert_eq!(site.ibid.store().browse().unwrap().count().await.unwrap().dead_effects.value(), Some(2));
}

async fn a_payload_goes_with_the_records_response<D: Database + Clone + 'static>(site: Site<D>) {
    let policy = Policy::default().with(|policy| {
        policy.retention = Duration::from_millis(1);
        policy.tombstone = Duration::from_secs(3600);
    });
    let mut asked = ask(&site.ibid, "k");
    asked.policy = Arc::new(policy);
    let Begin::Run(mut attempt) = site.ibid.begin(asked).await.unwrap() else { panic!("it is new") };
    let mut inside = attempt.join_tx(site.database.begin().await.unwrap()).await.unwrap();
    inside.enqueue(NewEffect::new("charge", "charge", "card 4242")).await.unwrap();
    let answer = Response::plain(201, "text/plain", "accepted".to_owned());
    assert!(matches!(inside.finish(answer).await.unwrap(), Outcome::Completed(_)));
    site.pay("other", NewEffect::new("charge", "charge", "card 1111")).await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    let reap = async || reap_once(&site.ibid, Retention::default()).await.unwrap();
    assert_eq!(reap().await.stripped, 0, "the effect is open, so the record stays whole");
    assert_eq!(site.effect("k").await.payload, "card 4242");
    assert_eq!(site.worker(&Psp::new([])).run_once().await.unwrap().done, 2);
    assert_eq!(reap().await.stripped, 1);
    let effect = site.effect("k").await;
    assert_eq!((effect.payload.len(), effect.result), (0, None));
    assert_eq!(
        (effect.state, &*effect.name, effect.provider_id.as_deref(), effect.done_at.is_some()),
        (EffectState::Done, "charge", Some("ch_1"), true),
        "the fact stays"
    );
    let other = site.effect("other").await;
    assert_eq!((&other.payload[..], other.result.as_deref()), (&b"card 1111"[..], Some(&b"answer"[..])));
}

async fn a_payload_goes_when_its_key_is_used_again<D: Database + Clone + 'static>(site: Site<D>) {
    let begin = async || loop {
        let mut asked = ask(&site.ibid, "k");
        asked.policy = Arc::new(Policy::default().with(|policy| policy.retention = Duration::from_millis(1)));
        match site.ibid.begin(asked).await.unwrap() {
            Begin::Run(attempt) => break attempt,
            Begin::Skip(Outcome::Completed(_)) => tokio::task::yield_now().await,
            other => panic!("{other:?}"),
        }
    };
    let mut attempt = begin().await;
    let mut inside = attempt.join_tx(site.database.begin().await.unwrap()).await.unwrap();
    inside.enqueue(NewEffect::new("charge", "charge", "card 4242")).await.unwrap();
    let answer = Response::plain(201, "text/plain", "accepted".to_owned());
    assert!(matches!(inside.finish(answer).await.unwrap(), Outcome::Completed(_)));
    site.pay("other", NewEffect::new("charge", "charge", "card 1111")).await;
    assert_eq!(site.worker(&Psp::new([])).run_once().await.unwrap().done, 2);
    // The record has expired, and the next generation begins before the reaper comes.
    let again = begin().await;
    let effect = site.effect("k").await;
    assert_eq!((effect.payload.len(), effect.result, effect.state), (0, None, EffectState::Done));
    assert_eq!(site.effect("other").await.payload, "card 1111");
    drop(again);
}

async fn sql<D: Database>(site: &Site<D>, text: &str) {
    let mut tx = site.database.begin().await.unwrap();
    tx.execute(statement(text, &[]), &[]).await.unwrap();
    tx.commit().await.unwrap();
}

async fn texts<D: Database>(site: &Site<D>, text: &str) -> Vec<String> {
    let mut tx = site.database.begin().await.unwrap();
    let text =
        if tx.dialect() == Dialect::Mysql { text.replace("as text", "as char") } else { text.to_owned() };
    let rows = tx.query(statement(&text, &[Type::Text]), &[]).await.unwrap();
    tx.rollback().await.unwrap();
    rows.into_iter().map(|mut row| row.text().unwrap()).collect()
}

/// Makes a statement that lives as long as the test.
fn statement(text: &str, columns: &'static [Type]) -> &'static Statement {
    Box::leak(Box::new(Statement { text: text.to_owned().leak(), columns }))
}

/// A look costs what it takes: 100,000 due effects of another kind, 100,000 behind a dead letter and 100,000 of a tenant that
/// has its share are not read.
#[tokio::test]
async fn a_look_on_sqlite_reads_no_effect_that_it_may_not_take() {
    let world = NodeOnSqlite::new().await;
    world.pay("k", [NewEffect::new("first", "charge", ""), NewEffect::new("second", "charge", "")]).await;
    world.sql(
        "insert into ibid_effect (seq, nonce, due_at, lease_us, created_at, count, tries, state, blocked, dead_letter, tenant,
           kind, aggregate)
         with recursive series (n) as (select 0 union all select n + 1 from series where n < 100000)
         select 1000 + n, 1, 1, 1, 1, 1, 0, 1, 0, 0, 't', 'other', null from series
         union all
         select 200000 + n, 1, 1, 1, 1, 1, 0, iif(n, 1, 5), n > 0, n = 0, 't', 'charge', 'account 7' from series
         union all
         select 400000 + n, 1, 1 + (n = 0), 1, 1, 1, 0, 1, 0, 0, iif(n, 'large', 'small'), 'report', null from series",
    );
    world.sql("insert into ibid_effect_turn (tenant, aggregate) values ('t', 'account 7')");
    let now = 1_800_000_000_000_000_i64;
    let picks: [(&str, &[&dyn rusqlite::ToSql], usize); 3] = [
        (
            include_str!("../../../src/outbox/sql/sqlite/pick_due.sql"),
            &[&now, &1, &"[\"charge\",\"mail\"]", &16],
            2,
        ),
        (
            include_str!("../../../src/outbox/sql/sqlite/next_tenants.sql"),
            &[&now, &1, &"report", &"", &32],
            2,
        ),
        (
            include_str!("../../../src/outbox/sql/sqlite/pick_tenant_due.sql"),
            &[&now, &1, &"report", &"small", &16],
            1,
        ),
    ];
    for (pick, params, expected) in picks {
        let (rows, steps) = world.steps(pick, params);
        assert!(rows == expected && steps < 2000, "{rows} rows, {steps} steps of SQLite's machine: {pick}");
    }
    let (rows, steps) =
        world.steps(include_str!("../../../src/outbox/sql/sqlite/unblock.sql"), &[&"t", &"account 7"]);
    assert!((rows, steps < 500) == (0, true), "{steps} steps");
    // The lists and the count of operators go by their indexes, too.
    let none = rusqlite::types::Null;
    for (record, state, dead, most) in [
        (None, Some(5), false, 1),
        (None, None, true, 1),
        (None, None, false, 10),
        (Some([0]), Some(1), false, 0),
    ] {
        let params: [&dyn rusqlite::ToSql; 6] = [&none, &0, &10, &record, &state, &dead];
        let (rows, steps) = world.steps(effects_sql!("list.sql"), &params);
        assert!(rows <= most && steps < 3000, "{record:?} {state:?} {dead}: {rows} rows, {steps} steps");
    }
    let (_, steps) = world.steps(include_str!("../../../src/store/sqlite/sql/count_effects.sql"), &[&100]);
    assert!(steps < 100, "{steps} steps");
    // And the worker itself takes what is due.
    let provider = Provider::new("w", |_| made_outcome());
    assert_eq!(world.worker(&provider).run_once().await.unwrap().done, 2);
}
