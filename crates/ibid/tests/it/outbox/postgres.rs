//! The outbox worker on PostgreSQL: many concurrent sessions, locks, isolation levels and a crashing server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ibid::evidence::EvidenceResult;
use ibid::operator::Operator;
use ibid::outbox::{
    BoxError, CallOutcome, EffectCall, EffectFilter, EffectHandler, NewEffect, RawPayload, SettledEffect,
    StoredEffect, VerifyOutcome, Worker, WorkerBuilder, WorkerRound,
};
use ibid::outcome::Outcome;
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::transaction::sqlx_postgres::{SqlxPostgres, SqlxPostgresTx};
use ibid::transaction::{Database, DriverTx, IsolatedDatabase, Isolation};
use ibid::{Ibid, Settings};
use ibid_core::evidence::EffectRef;
use ibid_core::machine::EffectState::{Done, Queued, Unknown};
use ibid_core::response::Response;
use ibid_testkit::postgres::Postgres;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Semaphore;

use crate::lossy_database::{Lossy, Reply};

use super::every_database::{evidence_report, executed_observation};
use super::harness::{Gate, Provider, ask, because, begin, made_outcome};

/// One node of an application.
pub(super) struct Node {
    pub(super) ibid: Ibid,
    pub(super) database: SqlxPostgres,
}

impl Node {
    pub(super) async fn new(server: &Postgres) -> Node {
        let options =
            PostgresOptions::default().with(|options| options.connection_wait = Duration::from_secs(30));
        let store = PostgresStore::open(&server.url(), options).await.unwrap();
        let ibid = Ibid::start(Arc::new(store), Settings::default()).await.unwrap();
        let pool = PgPoolOptions::new().max_connections(8).acquire_timeout(Duration::from_secs(30));
        let database = SqlxPostgres(pool.connect(&server.url()).await.unwrap());
        let tables = "create table if not exists payment (key text primary key);
             create table if not exists ledger (id bigserial primary key, line text, name text, payload bytea)";
        sqlx::raw_sql(tables).execute(&database.0).await.unwrap();
        Node { ibid, database }
    }

    pub(super) async fn pay(&self, key: &str, effects: impl IntoIterator<Item = NewEffect>) {
        let mut attempt = begin(&self.ibid, key).await;
        let mut inside = attempt.join_tx(self.database.begin().await.unwrap()).await.unwrap();
        sqlx::query("insert into payment values ($1)").bind(key).execute(inside.conn()).await.unwrap();
        for effect in effects {
            inside.enqueue(effect).await.unwrap();
        }
        let answer = Response::plain(201, "text/plain", "accepted".to_owned());
        assert!(matches!(inside.finish(answer).await.unwrap(), Outcome::Completed(_)));
    }

    fn building(&self, provider: &Provider) -> WorkerBuilder<SqlxPostgres> {
        Worker::builder(self.ibid.clone(), self.database.clone()).on("charge", Recording(provider.clone()))
    }

    pub(super) fn worker(&self, provider: &Provider) -> Worker<SqlxPostgres> {
        self.building(provider).build().unwrap()
    }

    async fn effects(&self) -> Vec<StoredEffect> {
        Operator::new(&self.ibid)
            .effects(EffectFilter::default().with(|filter| filter.limit = 1000))
            .await
            .unwrap()
            .0
    }

    /// Returns what handlers wrote, in the order of their statements.
    async fn ledger(&self, column: &str) -> Vec<String> {
        let sql = format!("select convert_from({column}::bytea, 'utf8') from ledger order by id");
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_all(&self.database.0).await.unwrap()
    }
}

/// Runs the worker until nothing is left to do.
async fn drain<D: Database + 'static>(node: &Node, worker: Worker<D>) {
    loop {
        let idle = match worker.run_once().await {
            Ok(round) => round.is_idle(),
            // At stricter levels a poll may fail while other workers run.
            Err(error) if error.is_retryable() => false,
            Err(error) => panic!("{error}"),
        };
        if idle && node.effects().await.iter().all(|effect| effect.state == Done) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

struct Recording(Provider);

impl EffectHandler<SqlxPostgresTx> for Recording {
    type Payload = RawPayload;

    async fn call(&self, call: &EffectCall) -> CallOutcome {
        EffectHandler::<ibid::transaction::rusqlite::RusqliteTx>::call(&self.0, call).await
    }

    async fn verify(&self, call: &EffectCall) -> VerifyOutcome {
        EffectHandler::<ibid::transaction::rusqlite::RusqliteTx>::verify(&self.0, call).await
    }

    async fn record(
        &self,
        call: &EffectCall,
        settled: &SettledEffect,
        tx: &mut SqlxPostgresTx,
    ) -> Result<(), BoxError> {
        sqlx::query("insert into ledger (line, name, payload) values ($1, $2, $3)")
            .bind(self.0.line(call, settled))
            .bind(&call.name)
            .bind(&call.payload[..])
            .execute(tx.conn())
            .await?;
        Ok(())
    }
}

pub(super) fn charge(name: &str) -> NewEffect {
    NewEffect::new(name, "charge", "42")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_runs_exactly_if_its_business_row_committed() {
    let server = Postgres::shared();
    let (node, provider) = (Node::new(&server).await, Provider::new("w", |_| made_outcome()));
    let mut attempt = begin(&node.ibid, "undone").await;
    let mut inside = attempt.join_tx(node.database.begin().await.unwrap()).await.unwrap();
    inside.enqueue(charge("undone")).await.unwrap();
    drop(inside);
    node.pay("k", [charge("kept")]).await;
    let worker = node.worker(&provider);
    assert_eq!(worker.run_once().await.unwrap(), WorkerRound::default().with(|round| round.done = 1));
    assert!(worker.run_once().await.unwrap().is_idle());
    let effects = node.effects().await;
    assert_eq!(effects.len(), 1);
    assert_eq!((effects[0].state, effects[0].provider_id.as_deref()), (Done, Some("ch_1")));
    assert_eq!(effects[0].result.as_deref(), Some(&b"receipt"[..]));
    assert_eq!(provider.calls().len(), 1);
    assert_eq!(node.ledger("line").await, ["w kept done"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_carry_out_five_hundred_effects_once_each() {
    let server = Postgres::shared();
    let (one, two) = (Node::new(&server).await, Node::new(&server).await);
    for key in 0..50 {
        one.pay(&format!("k{key}"), (0..10).map(|n| charge(&format!("e{n}")))).await;
    }
    let (ann, bob) = (Provider::new("ann", |_| made_outcome()), Provider::new("bob", |_| made_outcome()));
    let ours = one.building(&ann).concurrency(7).build().unwrap();
    let theirs = two.building(&bob).concurrency(7).build().unwrap();
    tokio::join!(drain(&one, ours), drain(&two, theirs));
    let mut keys: Vec<_> = ann.calls().into_iter().chain(bob.calls()).map(|c| c.downstream_key).collect();
    assert_eq!(keys.len(), 500);
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), one.ledger("line").await.len()), (500, 500));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stricter_isolation_costs_tries_and_changes_nothing() {
    let server = Postgres::shared();
    for level in [Isolation::RepeatableRead, Isolation::Serializable] {
        let node = Node::new(&server).await;
        node.pay(&format!("{level:?}"), (0..40).map(|n| charge(&format!("e{n}")))).await;
        let (ann, bob) = (Provider::new("ann", |_| made_outcome()), Provider::new("bob", |_| made_outcome()));
        let worker = |provider: &Provider| {
            let database = IsolatedDatabase::new(node.database.clone(), level);
            let worker =
                Worker::builder(node.ibid.clone(), database).on("charge", Recording(provider.clone()));
            worker.concurrency(5).build().unwrap()
        };
        tokio::join!(drain(&node, worker(&ann)), drain(&node, worker(&bob)));
        assert_eq!(ann.calls().len() + bob.calls().len(), 40, "{level:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_effect_is_skipped() {
    let server = Postgres::shared();
    let (node, provider) = (Node::new(&server).await, Provider::new("w", |_| made_outcome()));
    node.pay("k", [charge("held"), charge("free")]).await;
    let mut holder = node.database.0.begin().await.unwrap();
    let lock = "select e.seq from ibid_effect e
                join ibid_effect_call c on c.seq = e.seq where c.name = 'held' for update of e";
    sqlx::query(lock).execute(&mut *holder).await.unwrap();
    let worker = node.worker(&provider);
    assert_eq!(worker.run_once().await.unwrap().done, 1);
    assert_eq!(provider.calls()[0].name, "free");
    holder.rollback().await.unwrap();
    assert_eq!(worker.run_once().await.unwrap().done, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effects_of_one_aggregate_keep_their_order_on_two_nodes() {
    let server = Postgres::shared();
    let (one, two) = (Node::new(&server).await, Node::new(&server).await);
    let in_order = |n: u32| NewEffect::new("x", "charge", n.to_string()).ordered_by("account 7");
    for n in 0..20 {
        one.pay(&format!("k{n}"), [in_order(n)]).await;
    }
    let (ann, bob) = (Provider::new("ann", |_| made_outcome()), Provider::new("bob", |_| made_outcome()));
    tokio::join!(drain(&one, one.worker(&ann)), drain(&two, two.worker(&bob)));
    let expected: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(one.ledger("payload").await, expected);
}

/// Positions are assigned at enqueue and visible at commit: without the wait a later one could be seen, and called, first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_an_aggregate_follow_the_order_of_commits() {
    let server = Postgres::shared();
    let (one, two) = (Node::new(&server).await, Node::new(&server).await);
    let of = |aggregate: &str, payload: &str| {
        NewEffect::new("x", "charge", payload.to_owned()).ordered_by(aggregate)
    };
    let answer = || Response::plain(201, "text/plain", "accepted".to_owned());
    let (ann, bob) = (Provider::new("ann", |_| made_outcome()), Provider::new("bob", |_| made_outcome()));
    for undone in [true, false] {
        let mut attempt = begin(&one.ibid, &format!("first {undone}")).await;
        let mut first = attempt.join_tx(one.database.begin().await.unwrap()).await.unwrap();
        first.enqueue(of("account 7", &format!("first {undone}"))).await.unwrap();

        let (ibid, database) = (two.ibid.clone(), two.database.clone());
        let effect = of("account 7", &format!("second {undone}"));
        let second = tokio::spawn(async move {
            let mut attempt = begin(&ibid, &format!("second {undone}")).await;
            let mut inside = attempt.join_tx(database.begin().await.unwrap()).await.unwrap();
            inside.enqueue(effect).await.unwrap();
            inside.finish(answer()).await.unwrap()
        });
        let waits = "select count(*) from pg_stat_activity
                     where wait_event = 'advisory' and datname = current_database()";
        while server.sql(server.database(), waits).trim() != "1" {
            assert!(!second.is_finished(), "it is behind one that is not committed");
            tokio::task::yield_now().await;
        }
        // Effects of other aggregates do not wait.
        two.pay(&format!("other {undone}"), [of("account 8", &format!("other {undone}"))]).await;
        assert_eq!(
            one.worker(&ann).run_once().await.unwrap(),
            WorkerRound::default().with(|round| round.done = 1)
        );
        assert!(two.worker(&bob).run_once().await.unwrap().is_idle());
        if undone {
            drop(first);
        } else {
            assert!(matches!(first.finish(answer()).await.unwrap(), Outcome::Completed(_)));
        }
        assert!(matches!(second.await.unwrap(), Outcome::Completed(_)));
        tokio::join!(drain(&one, one.worker(&ann)), drain(&two, two.worker(&bob)));
    }
    let expected = ["other true", "second true", "other false", "first false", "second false"];
    assert_eq!(one.ledger("payload").await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_comes_back_late_is_refused_with_its_rows() {
    let server = Postgres::shared();
    let (one, two) = (Node::new(&server).await, Node::new(&server).await);
    one.pay("k", [charge("charge").repeatable()]).await;
    let gate = Gate::closed("zombie");
    let worker = one.worker(&gate.provider);
    let zombie = tokio::spawn(async move { worker.run_once().await.unwrap() });
    gate.until_reached().await;

    let lapse = "update ibid_effect set due_at = 0";
    server.sql(server.database(), lapse);
    let bob = Provider::new("bob", |_| made_outcome());
    let worker = two.worker(&bob);
    assert_eq!(worker.run_once().await.unwrap().again, 1);
    server.sql(server.database(), lapse);
    assert_eq!(worker.run_once().await.unwrap().done, 1);
    gate.open();
    assert_eq!(zombie.await.unwrap(), WorkerRound::default().with(|round| round.lost = 1));
    assert_eq!(one.ledger("line").await, ["bob charge done"]);
    assert_eq!(bob.calls()[0].downstream_key, gate.provider.calls()[0].downstream_key);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_survives_a_server_crash_before_it_is_recorded() {
    let mut server = Postgres::start();
    let node = Node::new(&server).await;
    node.pay("k", [charge("charge")]).await;
    let gate = Gate::closed("w");
    let worker = node.worker(&gate.provider);
    let running = tokio::spawn(async move { worker.run_once().await.unwrap() });
    gate.until_reached().await;
    server.stop_immediate();
    gate.open();
    server.start_again();
    assert_eq!(running.await.unwrap(), WorkerRound::default().with(|round| round.done = 1));
    assert_eq!(node.effects().await[0].state, Done);
    assert_eq!((gate.provider.calls().len(), node.ledger("line").await.len()), (1, 1));
}

/// A session that stalls with an effect locked would keep it from every other worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_worker_is_cut_off_after_the_effects_lease() {
    struct Looking;

    impl EffectHandler<SqlxPostgresTx> for Looking {
        type Payload = RawPayload;

        async fn call(&self, _: &EffectCall) -> CallOutcome {
            made_outcome()
        }

        async fn record(
            &self,
            _: &EffectCall,
            _: &SettledEffect,
            tx: &mut SqlxPostgresTx,
        ) -> Result<(), BoxError> {
            let look = "insert into ledger (line)
                            select current_setting('idle_in_transaction_session_timeout')";
            sqlx::query(look).execute(tx.conn()).await?;
            Ok(())
        }
    }

    let server = Postgres::shared();
    let node = Node::new(&server).await;
    node.pay("k", [charge("charge")]).await;
    let worker = Worker::builder(node.ibid.clone(), node.database.clone()).on("charge", Looking);
    assert_eq!(worker.build().unwrap().run_once().await.unwrap().done, 1);
    assert_eq!(node.ledger("line").await, ["1min"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owed_answer_reaches_a_client_of_another_node() {
    let server = Postgres::shared();
    let (one, two) = (Node::new(&server).await, Node::new(&server).await);
    let mut attempt = begin(&one.ibid, "k").await;
    let mut inside = attempt.join_tx(one.database.begin().await.unwrap()).await.unwrap();
    inside.enqueue(charge("charge").owing()).await.unwrap();
    assert!(matches!(inside.owe().await.unwrap(), Outcome::AwaitingEffect));
    let (ibid, asked) = (two.ibid.clone(), ask(&two.ibid, "k"));
    let waiter = tokio::spawn(async move { ibid.wait(asked, Duration::from_secs(60)).await });
    let provider = Provider::new("w", |_| made_outcome());
    assert_eq!(one.worker(&provider).run_once().await.unwrap().done, 1);
    match waiter.await.unwrap().unwrap() {
        Outcome::Completed(kept) => assert_eq!(&kept.response.body[..], b"paid"),
        other => panic!("not answered: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_retries_and_discards() {
    let server = Postgres::shared();
    let node = Node::new(&server).await;
    let provider = Provider::new("w", |call| match call.name.as_str() {
        "refused" => CallOutcome::Refused { why: "no".into() },
        _ => CallOutcome::Uncertain { why: "reset".into() },
    });
    node.pay("k", [charge("refused"), charge("unsure")]).await;
    assert_eq!(node.worker(&provider).run_once().await.unwrap().dead, 2);
    let letters =
        async || node.ibid.store().browse().unwrap().count().await.unwrap().dead_effects.value().unwrap();
    assert_eq!(letters().await, 2);
    let effects = node.effects().await;
    assert_eq!(effects[1].state, Unknown);
    Operator::new(&node.ibid).discard(effects[0].seq, &because("paid in cash")).await.unwrap();
    Operator::new(&node.ibid).retry(effects[1].seq, &because("asked them")).await.unwrap();
    let effects = node.effects().await;
    assert_eq!((effects[1].state, effects[1].tries, effects[1].called_at), (Queued, 0, None));
    assert_eq!(letters().await, 0);
    let queued = EffectFilter::default().with(|filter| filter.state = Some(Queued));
    let queued = Operator::new(&node.ibid).effects(queued).await.unwrap().0;
    assert_eq!(queued.iter().map(|effect| &*effect.name).collect::<Vec<_>>(), ["unsure"]);
    let of_record = EffectFilter::default().with(|filter| filter.record = Some(effects[0].record));
    assert_eq!(Operator::new(&node.ibid).effects(of_record).await.unwrap().0.len(), 2);
    let history = node.ibid.store().browse().unwrap().history(effects[0].record).await.unwrap();
    assert_eq!(history.len(), 2, "{history:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takes_go_by_their_indexes_on_a_full_outbox() {
    let server = Postgres::start_with(&[
        ("session_preload_libraries", "auto_explain"),
        ("auto_explain.log_min_duration", "0"),
        ("autovacuum", "off"),
    ]);
    let (node, provider) = (Node::new(&server).await, Provider::new("w", |_| made_outcome()));
    let in_order = |n: u32| charge(&format!("e{n}")).ordered_by("account 7");
    // Often enough that the server settles on a plan while the table is small.
    for n in 0..10 {
        node.pay(&format!("before {n}"), [in_order(n)]).await;
        assert_eq!(node.worker(&provider).run_once().await.unwrap().done, 1);
    }
    // Done effects, effects that are not due yet, and dead ones.
    let fill = "with c as (
          insert into ibid_effect_call (record, birth, name, owes, letter, downstream_key, rules, payload)
          select c.record, n, 'fill', false, false, 'fill ' || n, c.rules, ''
          from (select * from ibid_effect_call limit 1) c, generate_series(1, 60000) n
          returning seq, birth as n)
        insert into ibid_effect (seq, count, nonce, kind, state, blocked, dead_letter, tries, due_at, lease_us, created_at,
          done_at, aggregate, tenant)
        select c.seq, 1, 1, e.kind, s.state, false, s.state = 5, 0, s.due_at, e.lease_us, 0, s.done_at, s.aggregate, e.tenant
        from c, (select * from ibid_effect limit 1) e,
        lateral (select case n % 3 when 0 then 3 when 1 then 1 else 5 end, case n % 3 when 0 then 1 end,
          case n % 3 when 1 then 9000000000000000 + n end, 'filled ' || n) s(state, done_at, due_at, aggregate)";
    server.sql(server.database(), fill);
    for analyzed in [false, true] {
        if analyzed {
            server.sql(server.database(), "analyze");
        }
        let before = server.log().len();
        node.pay(&format!("after {analyzed}"), [in_order(1)]).await;
        assert_eq!(node.worker(&provider).run_once().await.unwrap().done, 1);
        let log = server.log();
        let log = &log[before..];
        for index in ["ibid_effect_due", "ibid_effect_order", "ibid_effect_pkey"] {
            assert!(log.contains(&format!("using {index}")), "{index} is used (analyzed: {analyzed}): {log}");
        }
        // The table of turns is empty most of the time, so a scan of it is as good as its index.
        for table in ["ibid_effect ", "ibid_effect_call "] {
            assert!(!log.contains(&format!("Seq Scan on {table}")), "analyzed: {analyzed}: {log}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_finds_its_effect_by_index_in_a_full_outbox() {
    let server = Postgres::start_with(&[
        ("session_preload_libraries", "auto_explain"),
        ("auto_explain.log_min_duration", "0"),
        ("autovacuum", "off"),
    ]);
    let (node, provider) = (Node::new(&server).await, Provider::new("w", |_| made_outcome()));
    node.pay("k", [charge("e")]).await;
    assert_eq!(node.worker(&provider).run_once().await.unwrap().done, 1);
    let fill = "with c as (
          insert into ibid_effect_call (record, birth, name, owes, letter, downstream_key, rules, payload)
          select c.record, n, 'fill', false, false, 'fill ' || n, c.rules, ''
          from (select * from ibid_effect_call limit 1) c, generate_series(1, 60000) n
          returning seq, birth as n)
        insert into ibid_effect (seq, count, nonce, kind, state, blocked, dead_letter, tries, lease_us, created_at, done_at,
          tenant, provider_id)
        select c.seq, 1, 1, e.kind, 3, false, false, 0, e.lease_us, 0, 1, e.tenant, 'ch_fill_' || n
        from c, (select * from ibid_effect limit 1) e";
    let key = node.effects().await[0].downstream_key.clone();
    server.sql(server.database(), fill);
    for analyzed in [false, true] {
        if analyzed {
            server.sql(server.database(), "analyze");
        }
        let before = server.log().len();
        let by_id = EffectRef::ProviderId { kind: "charge".into(), id: "ch_1".into() };
        for at in [EffectRef::DownstreamKey(key.clone()), by_id] {
            let heard = evidence_report("evt", &at, executed_observation(201, "ch_1"), Duration::ZERO);
            assert_eq!(node.ibid.report_evidence(heard).await.unwrap(), EvidenceResult::Known);
        }
        let log = server.log();
        let log = &log[before..];
        for index in ["ibid_effect_call_key", "ibid_effect_provider"] {
            assert!(log.contains(index), "{index} is used (analyzed: {analyzed}): {log}");
        }
        // The table of turns is empty most of the time, so a scan of it is as good as its index.
        for table in ["ibid_effect ", "ibid_effect_call "] {
            assert!(!log.contains(&format!("Seq Scan on {table}")), "analyzed: {analyzed}: {log}");
        }
    }
}

/// A handler that makes every call, and writes no rows.
struct Plain(Arc<Mutex<u32>>);

impl<T: Send> EffectHandler<T> for Plain {
    type Payload = RawPayload;

    async fn call(&self, _: &EffectCall) -> CallOutcome {
        *self.0.lock().unwrap() += 1;
        made_outcome()
    }

    async fn record(&self, _: &EffectCall, _: &SettledEffect, _: &mut T) -> Result<(), BoxError> {
        Ok(())
    }
}

#[tokio::test]
async fn a_claim_whose_commit_comes_late_is_given_back_all_the_same() {
    let server = Postgres::shared();
    let node = Node::new(&server).await;
    // Neither repeatable nor verified: a lapsed claim of it would become a dead letter.
    node.pay("k", [NewEffect::new("charge", "charge", "")]).await;
    static LATE: Semaphore = Semaphore::const_new(0);
    let database = Lossy::new(node.database.clone(), &[Reply::Late(&LATE)]);
    let calls = Arc::new(Mutex::new(0));
    let worker =
        Worker::builder(node.ibid.clone(), database).on("charge", Plain(calls.clone())).build().unwrap();
    let round = tokio::spawn(async move { (worker.run_once().await.unwrap(), worker) });
    let waits = "select count(*) from pg_stat_activity
         where wait_event_type = 'Lock' and datname = current_database() and query like '%ibid_effect%'";
    while server.sql(server.database(), waits).trim() != "1" {
        assert!(!round.is_finished(), "it waits for what the claim will come to");
        tokio::task::yield_now().await;
    }
    LATE.add_permits(1);
    let (given_back, worker) = round.await.unwrap();
    assert_eq!(
        (given_back, *calls.lock().unwrap()),
        (WorkerRound::default().with(|round| round.again = 1), 0)
    );
    assert_eq!(node.effects().await[0].state, Queued);
    server.sql(server.database(), "update ibid_effect set due_at = 0");
    assert_eq!(worker.run_once().await.unwrap().done, 1);
    assert_eq!(*calls.lock().unwrap(), 1);
}
