//! The outbox on MariaDB, where several statements do what is one on PostgreSQL: the order of an aggregate holds at every
//! isolation level, and concurrent workers call each effect once.

use std::sync::{Arc, Mutex};

use ibid::outbox::{
    BoxError, CallOutcome, CallResult, EffectCall, EffectHandler, RawPayload, SettledEffect, Worker,
};
use ibid::transaction::{Database, IsolatedDatabase, Isolation, SqlTx};
use ibid_core::effect::NewEffect;
use ibid_core::response::Response;
use ibid_core::sql::Type::{I64, Text};
use ibid_core::sql::{OwnedTx as _, Param, Statement};
use ibid_testkit::mariadb::MariaDb;

use super::every_database::{Site, charge, mysql};
use super::harness::begin;
use crate::adapters::databases::{MysqlAsyncPools, TestDatabase};
use crate::adapters::{Adapter as _, PATIENT};

const LEVELS: [Isolation; 3] = [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable];

/// A provider that remembers the names of its calls.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<String>>>);

impl<T: SqlTx> EffectHandler<T> for Calls {
    type Payload = RawPayload;

    async fn call(&self, call: &EffectCall) -> CallOutcome {
        self.0.lock().unwrap().push(call.name.clone());
        CallOutcome::Made(CallResult::default())
    }

    async fn record(&self, _: &EffectCall, _: &SettledEffect, _: &mut T) -> Result<(), BoxError> {
        Ok(())
    }
}

impl Calls {
    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn worker<D: Database + Clone + 'static>(&self, site: &Site<D>) -> Worker<D>
    where
        D::Tx: 'static,
    {
        Worker::builder(site.ibid.clone(), site.database.clone()).on("charge", self.clone()).build().unwrap()
    }
}

fn ordered_charge(name: &str, aggregate: &str) -> NewEffect {
    NewEffect { name: name.to_owned(), ..charge() }.ordered_by(aggregate)
}

fn response() -> Response {
    Response::plain(201, "text/plain", "accepted".to_owned())
}

/// T1 enqueues B behind A and stays open; T2 ends A and sees no B; T1 commits. T2 must not wait for T1, and B must run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_enqueued_while_the_one_before_ends_runs_on_mysql() {
    for level in LEVELS {
        let (site, calls) = (mysql().await, Calls::default());
        site.pay("a", ordered_charge("a", "account")).await;
        let mut attempt = begin(&site.ibid, "b").await;
        let database = IsolatedDatabase::new(site.database.clone(), level);
        let mut t1 = attempt.join_tx(database.begin().await.unwrap()).await.unwrap();
        t1.enqueue(ordered_charge("b", "account")).await.unwrap();
        let worker = calls.worker(&site);
        assert_eq!(worker.run_once().await.unwrap().done, 1, "{level:?}: the end does not wait");
        assert!(worker.run_once().await.unwrap().is_idle(), "{level:?}: B is not committed");
        let _ = t1.finish(response()).await.unwrap();
        assert_eq!(worker.run_once().await.unwrap().done, 1, "{level:?}");
        assert_eq!(calls.names(), ["a", "b"], "{level:?}");
    }
}

/// T1 enqueues first and commits last. T2 must wait for it, or its effect would be called first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effects_of_an_aggregate_are_numbered_by_commits_on_mysql() {
    let (site, calls) = (mysql().await, Calls::default());
    let mut attempt = begin(&site.ibid, "a").await;
    let mut t1 = attempt.join_tx(site.database.begin().await.unwrap()).await.unwrap();
    t1.enqueue(ordered_charge("a", "account")).await.unwrap();
    let site = Arc::new(site);
    let other = site.clone();
    let second = tokio::spawn(async move { other.pay("b", ordered_charge("b", "account")).await });
    // Another aggregate does not wait.
    site.pay("c", ordered_charge("c", "other account")).await;
    let waits = "select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT' and trx_query like '%ibid_effect_lock%'";
    while sqlx::query_scalar::<_, i64>(waits).fetch_one(&site.database.0).await.unwrap() == 0 {}
    let _ = t1.finish(response()).await.unwrap();
    second.await.unwrap();
    let worker = calls.worker(&site);
    while !worker.run_once().await.unwrap().is_idle() {}
    let names = calls.names();
    let index = |name: &str| names.iter().position(|called| called == name).unwrap();
    assert!(names.len() == 3 && index("a") < index("b"), "{names:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_at_once_call_each_effect_once_in_order_on_mysql() {
    workers_at_once(mysql().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_at_once_call_each_effect_once_with_mysql_async() {
    let Site { ibid, _place, .. } = mysql().await;
    let url = _place.downcast_ref::<MariaDb>().unwrap().url();
    let database = MysqlAsyncPools::open(&TestDatabase::at(url), 8, PATIENT).await;
    workers_at_once(Site { ibid, database, _place }).await;
}

/// Requests enqueue while three workers look, claim and end: no effect is skipped, called twice or called out of order.
async fn workers_at_once<D: Database + Clone + 'static>(site: Site<D>)
where
    D::Tx: 'static,
{
    let (site, calls) = (Arc::new(site), Calls::default());
    let enqueuers: Vec<_> = (0..AGGREGATES)
        .map(|aggregate| {
            let site = site.clone();
            tokio::spawn(async move {
                for number in 0..EACH {
                    let name = format!("{aggregate} {number}");
                    site.pay(&name, ordered_charge(&name, &aggregate.to_string())).await;
                }
            })
        })
        .collect();
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (worker, calls) = (calls.worker(&site), calls.clone());
            tokio::spawn(async move {
                while calls.names().len() < AGGREGATES * EACH {
                    worker.run_once().await.unwrap();
                }
            })
        })
        .collect();
    for task in enqueuers.into_iter().chain(workers) {
        task.await.unwrap();
    }
    let names = calls.names();
    for aggregate in 0..AGGREGATES {
        let prefix = format!("{aggregate} ");
        let of_it: Vec<_> = names.iter().filter_map(|name| name.strip_prefix(&prefix)).collect();
        let expected: Vec<_> = (0..EACH).map(|number| number.to_string()).collect();
        assert_eq!(of_it, expected, "aggregate {aggregate}");
    }
    let worker = calls.worker(&site);
    while !worker.run_once().await.unwrap().is_idle() {}
    assert_eq!(calls.names().len(), AGGREGATES * EACH, "none was called again");
}

/// A look costs what it takes: 20,000 due effects of a tenant that has its share are not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_on_mysql_reads_no_effect_that_it_may_not_take() {
    let site = mysql().await;
    let fill = "insert into ibid_effect (seq, nonce, due_at, lease_us, created_at, written_at, count, tries, state, blocked,
                  dead_letter, tenant, kind)
                select 1000 + s.seq, 1, 1 + (s.seq = 0), 1, 1, 1, 1, 0, 1, 0, 0, if(s.seq, 'large', 'small'), 'report'
                from seq_0_to_20000 s";
    sqlx::raw_sql(fill).execute(&site.database.0).await.unwrap();
    let mut tx = site.database.begin().await.unwrap();
    let (state, kind) = (Param::I64(1), Param::Text("report"));
    let looks: [(&Statement, &[Param<'_>], usize); 3] = [
        (&PICK_DUE, &[kind, state, Param::I64(4)], 4),
        (&NEXT_TENANTS, &[Param::Null(I64), state, kind, Param::Text("large"), Param::I64(1)], 1),
        (&PICK_TENANT_DUE, &[Param::Null(I64), state, kind, Param::Text("small"), Param::I64(4)], 1),
    ];
    for (statement, params, expected) in looks {
        let before = rows_read(&mut tx).await;
        let rows = tx.query(statement, params).await.unwrap();
        let read = rows_read(&mut tx).await - before;
        assert!(rows.len() == expected && read < 10, "{} rows, {read} read: {}", rows.len(), statement.text);
    }
    tx.rollback().await.unwrap();
}

/// Returns how many rows this session has read in the order of an index.
async fn rows_read(tx: &mut impl SqlTx) -> i64 {
    tx.query(&ROWS_READ, &[]).await.unwrap().remove(0).i64().unwrap()
}

static ROWS_READ: Statement = Statement {
    text: "select cast(variable_value as signed) from information_schema.session_status
           where variable_name = 'handler_read_next'",
    columns: &[I64],
};
static PICK_DUE: Statement = Statement {
    text: include_str!("../../../src/outbox/sql/mysql/pick_due.sql"),
    columns: &[I64, Text, I64],
};
static NEXT_TENANTS: Statement =
    Statement { text: include_str!("../../../src/outbox/sql/mysql/next_tenants.sql"), columns: &[Text, I64] };
static PICK_TENANT_DUE: Statement = Statement {
    text: include_str!("../../../src/outbox/sql/mysql/pick_tenant_due.sql"),
    columns: &[I64, Text, I64],
};

const AGGREGATES: usize = 4;

/// Effects of each aggregate.
const EACH: usize = 10;
