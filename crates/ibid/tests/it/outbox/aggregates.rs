//! Order within an aggregate on PostgreSQL: an effect that is enqueued while the one before it ends is neither early nor lost.

use std::sync::Arc;

use ibid::outbox::{
    BoxError, CallOutcome, EffectCall, EffectHandler, NewEffect, RawPayload, SettledEffect, Worker,
    WorkerRound,
};
use ibid::transaction::sqlx_postgres::SqlxPostgresTx;
use ibid::transaction::{Database, IsolatedDatabase, Isolation};
use ibid_core::response::Response;
use ibid_testkit::postgres::Postgres;
use tokio::sync::Semaphore;

use super::harness::{Gate, Provider, begin, made_outcome};
use super::postgres::{Node, charge};

const LEVELS: [Isolation; 3] = [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable];

fn one_done() -> WorkerRound {
    WorkerRound::default().with(|round| round.done = 1)
}

fn ordered_charge(name: &str) -> NewEffect {
    charge(name).ordered_by("account 7")
}

fn response() -> Response {
    Response::plain(201, "text/plain", "accepted".to_owned())
}

fn names(provider: &Provider) -> Vec<String> {
    provider.calls().into_iter().map(|call| call.name).collect()
}

/// T1 enqueues B behind A and stays open; T2 ends A and sees no B; T1 commits. T2 must not wait for T1, and B must run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_enqueued_while_the_one_before_ends_runs() {
    for level in LEVELS {
        let server = Postgres::shared();
        let (node, provider) = (Node::new(&server).await, Provider::new("w", |_| made_outcome()));
        node.pay("a", [ordered_charge("a")]).await;
        let mut attempt = begin(&node.ibid, "b").await;
        let database = IsolatedDatabase::new(node.database.clone(), level);
        let mut t1 = attempt.join_tx(database.begin().await.unwrap()).await.unwrap();
        t1.enqueue(ordered_charge("b")).await.unwrap();
        let worker = node.worker(&provider);
        assert_eq!(worker.run_once().await.unwrap(), one_done(), "{level:?}: the end does not wait");
        assert!(worker.run_once().await.unwrap().is_idle(), "{level:?}: B is not committed");
        let _ = t1.finish(response()).await.unwrap();
        assert_eq!(worker.run_once().await.unwrap(), one_done(), "{level:?}");
        assert_eq!(names(&provider), ["a", "b"], "{level:?}");
    }
}

/// T1 takes its snapshot; A is enqueued and committed, or ends; T1 enqueues B. Whatever its snapshot shows, B runs after A.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_snapshot_at_enqueue_changes_no_order() {
    for level in LEVELS {
        for ends_in_between in [false, true] {
            let server = Postgres::shared();
            let (node, provider) = (Node::new(&server).await, Provider::new("w", |_| made_outcome()));
            let worker = node.worker(&provider);
            let mut attempt = begin(&node.ibid, "b").await;
            let database = IsolatedDatabase::new(node.database.clone(), level);
            if ends_in_between {
                node.pay("a", [ordered_charge("a")]).await;
            }
            let mut t1 = attempt.join_tx(database.begin().await.unwrap()).await.unwrap();
            if ends_in_between {
                assert_eq!(worker.run_once().await.unwrap(), one_done());
            } else {
                node.pay("a", [ordered_charge("a")]).await;
            }
            t1.enqueue(ordered_charge("b")).await.unwrap();
            let _ = t1.finish(response()).await.unwrap();
            if !ends_in_between {
                assert_eq!(worker.run_once().await.unwrap(), one_done(), "{level:?}: B waits for A");
            }
            assert_eq!(worker.run_once().await.unwrap(), one_done(), "{level:?}: B is not stranded");
            assert_eq!(names(&provider), ["a", "b"], "{level:?}");
        }
    }
}

/// A handler whose rows are not written before the gate is opened.
struct SlowRows {
    reached: Arc<Semaphore>,
    gate: Arc<Semaphore>,
}

impl EffectHandler<SqlxPostgresTx> for SlowRows {
    type Payload = RawPayload;

    async fn call(&self, _: &EffectCall) -> CallOutcome {
        made_outcome()
    }

    async fn record(
        &self,
        _: &EffectCall,
        _: &SettledEffect,
        _: &mut SqlxPostgresTx,
    ) -> Result<(), BoxError> {
        self.reached.add_permits(1);
        self.gate.acquire().await.unwrap().forget();
        Ok(())
    }
}

/// T2 ends A and stays open; B is enqueued and committed; a look sees A as open; T2 commits. B must run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_before_the_end_commits_strands_no_effect() {
    let server = Postgres::shared();
    let (node, bob) = (Node::new(&server).await, Provider::new("bob", |_| made_outcome()));
    node.pay("a", [ordered_charge("a")]).await;
    let (reached, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let slow = SlowRows { reached: reached.clone(), gate: gate.clone() };
    let ann = Worker::builder(node.ibid.clone(), node.database.clone()).on("charge", slow).build().unwrap();
    let ending = tokio::spawn(async move { ann.run_once().await.unwrap() });
    reached.acquire().await.unwrap().forget();
    node.pay("b", [ordered_charge("b")]).await;
    let worker = node.worker(&bob);
    assert!(worker.run_once().await.unwrap().is_idle(), "A has not ended");
    assert_eq!(
        server.sql(server.database(), "select count(*) from ibid_effect_turn"),
        "0",
        "B's turn is handled"
    );
    gate.add_permits(1);
    assert_eq!(ending.await.unwrap(), one_done());
    assert_eq!(worker.run_once().await.unwrap(), one_done());
    assert_eq!(names(&bob), ["b"]);
}

/// The transaction that holds the next effect may roll back, so its turn has to stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_of_a_locked_effect_stays_for_the_next_look() {
    let server = Postgres::shared();
    let node = Node::new(&server).await;
    let gate = Gate::closed("w");
    node.pay("a", [ordered_charge("a")]).await;
    let worker = node.worker(&gate.provider);
    let ending = tokio::spawn(async move { (worker.run_once().await.unwrap(), worker) });
    gate.until_reached().await;
    node.pay("b", [ordered_charge("b")]).await;
    assert!(node.worker(&gate.provider).run_once().await.unwrap().is_idle());
    let mut holder = node.database.0.begin().await.unwrap();
    let lock = "select seq from ibid_effect where blocked for update";
    sqlx::query(lock).execute(&mut *holder).await.unwrap();
    gate.open();
    let (ended, worker) = ending.await.unwrap();
    assert_eq!(ended, one_done());
    assert!(worker.run_once().await.unwrap().is_idle(), "the next effect is locked");
    holder.rollback().await.unwrap();
    gate.open();
    assert_eq!(worker.run_once().await.unwrap(), one_done());
}

/// A look costs what it takes: 100,000 due effects of another kind, 100,000 behind a dead letter and 100,000 of a tenant that
/// has its share are not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_reads_no_effect_that_it_may_not_take() {
    let server = Postgres::shared();
    let node = Node::new(&server).await;
    node.pay("k", [charge("first"), charge("second")]).await;
    insert_backlog(&server);
    assert_looks_read_few_pages(&server);
    // The lists and the count of operators go by their indexes, too.
    assert_lists_read_few_pages(&server);
    assert_count_reads_few_pages(&server);
}

/// Inserts 300,000 effects that a look may not take, a dead letter with a turn of its aggregate, and one effect of a tenant
/// with no backlog.
fn insert_backlog(server: &Postgres) {
    let fill = "insert into ibid_effect (seq, nonce, due_at, lease_us, created_at, count, tries, state, blocked, dead_letter,
                  tenant, kind, aggregate)
                select 1000 + n, 1, 1, 1, 1, 1, 0, 1, false, false, 't', 'other', null from generate_series(1, 100000) n
                union all
                select 200000 + n, 1, 1, 1, 1, 1, 0, case n when 0 then 5 else 1 end, n > 0, n = 0, 't', 'charge', 'account 7'
                from generate_series(0, 100000) n
                union all
                select 400000 + n, 1, case n when 0 then 2 else 1 end, 1, 1, 1, 0, 1, false, false,
                  case n when 0 then 'small' else 'large' end, 'report', null
                from generate_series(0, 100000) n;
                insert into ibid_effect_turn (tenant, aggregate) values ('t', 'account 7');
                analyze";
    server.sql(server.database(), fill);
}

/// Executes a statement, and returns the number of pages that it read and its plan. Its changes are rolled back.
fn explain(server: &Postgres, statement: &str, types: &str, params: &str) -> (u32, String) {
    let prefix = "explain (analyze, buffers, costs off, timing off, summary off)";
    let sql = format!(
        "set plan_cache_mode = force_generic_plan; begin; prepare look ({types}) as {statement};
         {prefix} execute look ({params}); rollback"
    );
    let plan = server.sql(server.database(), &sql);
    let buffers = plan.lines().find_map(|line| line.trim().strip_prefix("Buffers: shared ")).unwrap_or("");
    let count = |word: &str| word.split_once('=').map_or(0, |(_, count)| count.parse().unwrap());
    (buffers.split(' ').map(count).sum::<u32>(), plan)
}

fn assert_looks_read_few_pages(server: &Postgres) {
    let take = concat!(
        include_str!("../../../src/outbox/sql/postgres/take.sql"),
        include_str!("../../../src/outbox/sql/postgres/effect.sql")
    );
    let picks = [
        (
            include_str!("../../../src/outbox/sql/postgres/pick_due.sql"),
            "int8, int8, text, int8",
            "null, 1, '[\"charge\",\"mail\"]', 16",
            2,
        ),
        (
            include_str!("../../../src/outbox/sql/postgres/next_tenants.sql"),
            "int8, int8, text, text, int8",
            "null, 1, 'report', '', 32",
            2,
        ),
        (
            include_str!("../../../src/outbox/sql/postgres/pick_tenant_due.sql"),
            "int8, int8, text, text, int8",
            "null, 1, 'report', 'small', 16",
            1,
        ),
        (take, "int8, text, int8, int8, int8, boolean", "null, '[1,2]', 2, 77, 1, false", 2),
    ];
    for (pick, types, params, rows) in picks {
        let (read, plan) = explain(server, pick, types, params);
        let actual = plan.lines().find(|line| line.contains("(actual")).unwrap_or_default();
        assert!(actual.contains(&format!("rows={rows}")) && (1..100).contains(&read), "{read} pages: {plan}");
    }
    let turns = include_str!("../../../src/outbox/sql/postgres/turns.sql");
    let (read, plan) = explain(server, turns, "int8", "256");
    assert!((1..100).contains(&read), "{read} pages: {plan}");
}

fn assert_lists_read_few_pages(server: &Postgres) {
    let list = concat!(
        include_str!("../../../src/outbox/sql/postgres/list.sql"),
        include_str!("../../../src/outbox/sql/postgres/effect.sql")
    );
    for filter in [
        "null, 5, false",
        "null, null, true",
        "null, null, false",
        "'\\x000102030405060708090a0b0c0d0e0f', 1, false",
        "'\\x000102030405060708090a0b0c0d0e0f', null, true",
    ] {
        let params = format!("null, 0, 10, {filter}");
        let (read, plan) = explain(server, list, "int8, int8, int8, bytea, int8, boolean", &params);
        assert!((1..200).contains(&read), "{filter}: {read} pages: {plan}");
    }
}

fn assert_count_reads_few_pages(server: &Postgres) {
    let count = include_str!("../../../src/store/postgres/sql/count_effects.sql");
    let (read, plan) = explain(server, count, "int8", "100001");
    assert!((1..100).contains(&read), "{read} pages: {plan}");
}
