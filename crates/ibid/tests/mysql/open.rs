//! Opening: servers and tables that ibid refuses, each with its reason.

use ibid::store::checkup::{Role, Schema};
use ibid::store::mysql::MysqlOpenError as OpenError;
use ibid_core::change::{Draft, HistoryKind};
use ibid_core::evidence::{EventName, Evidence, EvidenceSubject};
use ibid_core::machine::Observation;
use ibid_core::reap::ReapTarget;
use ibid_core::record::State;
use ibid_core::store::{Durability, RecordFilter, RenewOutcome};
use ibid_testkit::contract::{commit, draft, insert, telling};

use super::*;

async fn try_open(url: &str) -> Result<MysqlStore, OpenError> {
    MysqlStore::open(url, options()).await
}

#[tokio::test]
async fn a_server_that_may_lose_commits_is_refused_unless_accepted() {
    let server = MariaDb::start();
    let url = server.url();
    for (setting, value) in [("innodb_flush_log_at_trx_commit", "2"), ("sync_binlog", "0")] {
        server.sql("", &format!("set global {setting} = {value}"));
        let refused = try_open(&url).await.expect_err("a commit may be lost");
        assert!(
            matches!(&refused, OpenError::WeakDurability { setting: named, value: found, .. } if *named == setting && found == value),
            "{refused:?}"
        );
        let checkup = MysqlStore::checkup(&url, options()).await.expect("a checkup");
        let weak: Vec<_> = checkup.durability.iter().filter(|one| one.is_weak).map(|one| one.name).collect();
        assert_eq!(weak, [setting]);
        let accepted = try_open(&format!("{url}?durability=weak")).await.expect("it was accepted");
        assert!(matches!(accepted.facts().durability, Durability::Weak { .. }));
        server.sql("", &format!("set global {setting} = 1"));
    }
    assert_eq!(try_open(&url).await.expect("it opens").facts().durability, Durability::Durable);
}

#[tokio::test]
async fn a_server_that_may_not_be_written_to_is_refused() {
    let server = MariaDb::start();
    let url = server.url();
    try_open(&url).await.expect("it opens");
    server.sql("", "set global read_only = 1");
    let refused = try_open(&url).await;
    assert!(matches!(refused, Err(OpenError::ReadOnly { .. })), "{refused:?}");
    assert_eq!(MysqlStore::checkup(&url, options()).await.expect("a checkup").role, Role::ReadOnly);
    server.sql("", "set global read_only = 0");
    server.sql("", "set global binlog_format = 'STATEMENT'");
    let refused = try_open(&url).await;
    assert!(matches!(refused, Err(OpenError::StatementLog { .. })), "{refused:?}");
    let checkup = MysqlStore::checkup(&url, options()).await.expect("a checkup");
    assert!(
        checkup.refusals.iter().any(|reason| reason.contains("binlog_format = STATEMENT")),
        "{checkup:?}"
    );
    server.sql("", "set global binlog_format = 'ROW'");
    // A server may follow several others, by names.
    for name in ["", "'second'"] {
        let change = format!("change master {name} to master_host = '127.0.0.1', master_user = 'replica'");
        server.sql("", &change);
        let refused = try_open(&url).await;
        assert!(matches!(refused, Err(OpenError::ReadOnly { .. })), "a writable replica: {refused:?}");
        assert_eq!(MysqlStore::checkup(&url, options()).await.expect("a checkup").role, Role::Standby);
        server.sql("", &format!("reset slave {name} all"));
    }
    try_open(&url).await.expect("it opens again");
}

#[tokio::test]
async fn what_a_user_may_not_see_is_not_taken_for_absent() {
    let server = MariaDb::start();
    let database = server.database();
    server.sql("", &format!("create user app; grant all on {database}.* to app"));
    let url = server.url().replace("root@", "app@");
    try_open(&url).await.expect("it needs no more to work");
    let missing = async || {
        let checkup = MysqlStore::checkup(&url, options()).await.expect("a checkup");
        checkup.standbys.expect("standbys are looked for").missing
    };
    assert_eq!(missing().await, ["slave monitor", "process"]);
    server.sql("", "grant process on *.* to app");
    assert_eq!(missing().await, ["slave monitor"]);
    server.sql("", "grant slave monitor on *.* to app");
    assert_eq!(missing().await, [""; 0]);
}

#[tokio::test]
async fn a_galera_node_is_refused() {
    let server = MariaDb::start_with(&[("wsrep_on", "on"), ("innodb_autoinc_lock_mode", "2")]);
    let refused = try_open(&server.url()).await;
    assert!(matches!(refused, Err(OpenError::Galera { .. })), "{refused:?}");
    let checkup = MysqlStore::checkup(&server.url(), options()).await.expect("a checkup");
    assert!(checkup.refusals.iter().any(|reason| reason.contains("wsrep_on")), "{checkup:?}");
}

#[tokio::test]
async fn a_table_without_transactions_is_refused() {
    let server = MariaDb::shared();
    let url = server.url();
    try_open(&url).await.expect("it opens");
    server.sql(server.database(), "alter table ibid_body engine = Aria");
    let refused = try_open(&url).await.expect_err("another engine");
    assert!(
        matches!(&refused, OpenError::Engine { table, engine, .. } if table == "ibid_body" && engine == "Aria"),
        "{refused:?}"
    );
    let checkup = MysqlStore::checkup(&url, options()).await.expect("a checkup");
    assert!(checkup.refusals.iter().any(|reason| reason.contains("Aria")), "{checkup:?}");
}

#[tokio::test]
async fn a_newer_schema_is_used_if_it_only_expanded() {
    let server = MariaDb::shared();
    let url = server.url();
    let closed = options().with(|options| options.migrate = false);
    let refused = MysqlStore::open(&url, closed).await;
    assert!(matches!(refused, Err(OpenError::NotMigrated { found: 0, .. })), "{refused:?}");
    assert_eq!(MysqlStore::checkup(&url, options()).await.expect("a checkup").schema, Schema::Absent);
    let migrate = async || {
        let migration = MysqlStore::migrate(&url, options()).await.expect("it migrates");
        (migration.before, migration.after)
    };
    assert_eq!(migrate().await, (0, 1));
    assert_eq!(migrate().await, (1, 1));
    // A migration that was cut off before it was noted.
    server.sql(server.database(), "delete from ibid_schema_step; drop table ibid_evidence");
    assert_eq!(migrate().await, (0, 1), "again");
    let step = "insert into ibid_schema_step (number, digest, needs_at_least) values (2, x'00', ";
    server.sql(server.database(), &format!("{step} 1)"));
    try_open(&url).await.expect("a step that only expands");
    server.sql(server.database(), "update ibid_schema_step set needs_at_least = 2 where number = 2");
    let refused = try_open(&url).await;
    assert!(matches!(refused, Err(OpenError::FromTheFuture { found: 2, known: 1, .. })), "{refused:?}");
    server.sql(
        server.database(),
        "delete from ibid_schema_step where number = 2; update ibid_schema_step set digest = x'00'",
    );
    let refused = try_open(&url).await;
    assert!(matches!(refused, Err(OpenError::Altered { number: 1, .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn processes_that_start_together_make_the_tables_once() {
    let server = MariaDb::shared();
    let url = server.url();
    let starts = (0..6).map(|_| {
        let url = url.clone();
        tokio::spawn(async move { try_open(&url).await.map(drop) })
    });
    for start in starts.collect::<Vec<_>>() {
        start.await.expect("no panic").expect("each of them opens");
    }
    assert_eq!(server.sql(server.database(), "select number from ibid_schema_step"), "1");
}

#[tokio::test]
async fn a_server_that_can_not_be_reached_is_named_without_a_password() {
    let server = MariaDb::start();
    let url =
        |user: &str, port: u16| format!("mysql://{user}:hunter2@127.0.0.1:{port}/{}", server.database());
    let unknown = try_open(&url("other", server.port())).await.expect_err("there is no such user");
    assert!(matches!(unknown, OpenError::Refused { .. }), "{unknown:?}");
    let nowhere = try_open(&url("root", 1)).await.expect_err("nothing listens");
    assert!(matches!(nowhere, OpenError::Unreachable { .. }), "{nowhere:?}");
    let bad = try_open("mysql://root:hunter2@127.0.0.1:x/db").await.expect_err("not a URL");
    for error in [unknown, nowhere, bad] {
        assert!(!format!("{error:?} {error}").contains("hunter2"), "{error:?}");
    }
}

/// A server whose sessions refuse updates without a key, cut rows off, and only read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_default_of_the_server_breaks_a_statement() {
    let server = MariaDb::start();
    let (database, other) = (server.create_database(), server.create_database());
    server.sql(
        "",
        "set global sql_safe_updates = 1; set global sql_select_limit = 1; set global tx_read_only = 1",
    );
    let store = open(&server, &database).await;
    let portable = open_with(&server, &other, |options| options.portable_statements = true).await;
    for store in [&store, &portable] {
        let records = begin_some(store, 4, LONG).await;
        let leases = records.iter().map(|record| (record.id, record.version)).collect();
        let renewed = store.renew(leases).await.expect("an answer");
        assert!(renewed.iter().all(|one| matches!(one, RenewOutcome::Until(_))), "{renewed:?}");
        let finishes = records[..2].iter().map(|record| finish(record)).collect();
        assert!(commit_all(&**store, finishes).await.values().all(|fate| matches!(fate, Commit::Done(_))));
        for record in &records[2..] {
            commit(&**store, &telling(finish(record), HistoryKind::Operator, "told")).await;
        }
        let page = store.browse().expect("a list").list(RecordFilter::default()).await.expect("a list");
        assert_eq!(page.items.len(), 4);
        let evidence = store.evidence().expect("it stores evidence");
        let names = ["a", "b"].map(|event| EventName { source: "psp".into(), event: event.into() });
        for name in names.clone() {
            let (about, what) = (EvidenceSubject::Record(records[0].id), Observation::NotExecuted);
            let one = Evidence { name, about, owner: None, what, age: Duration::ZERO };
            evidence.insert_evidence(one, Duration::ZERO).await.expect("it is stored");
        }
        evidence.dismiss_evidence(names.to_vec()).await.expect("they are dismissed");
        assert_eq!(evidence.purge_evidence(10).await.expect("it purges"), 2);
        let over = Some(Duration::ZERO);
        for name in [TestRecord::fresh(), TestRecord::fresh()] {
            let gone = Draft { expires_in: over, purge_in: over, ..draft(&name, State::Completed) };
            commit(&**store, &insert(&name, gone)).await;
        }
        assert_eq!(store.reap(ReapTarget::Records, None, 10).await.expect("it reaps").removed, 2);
    }
    let mut rows = 0;
    let mut count = |_: &[String], _: Vec<Option<String>>| {
        rows += 1;
        std::ops::ControlFlow::Continue(())
    };
    let statement = "select id from ibid_record";
    let read = MysqlStore::read_rows(&server.url_for(&database), options(), statement, &mut count).await;
    read.expect("it reads");
    assert_eq!(rows, 4, "a comparison would take the others for missing");
}
