//! Plans that the server chooses for the statements, and updates that stay within their page.

use ibid_core::reap::ReapTarget;
use ibid_core::record::RecordDetails;
use ibid_core::scope::RecordId;
use ibid_testkit::contract::{load_all, take_over};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hot_path_statement_scans_a_table() {
    let server = Postgres::start_with(&[
        // It logs the plan of every statement as it was run.
        ("session_preload_libraries", "auto_explain"),
        ("auto_explain.log_min_duration", "0"),
        // The planner's statistics are not refreshed.
        ("autovacuum", "off"),
    ]);
    let database = server.create_database();
    drop(open(&server, &database).await);
    // The worst statistics for the planner: all tables are empty.
    server.sql(&database, "vacuum analyze");
    let open_one = async |prepare, connections_max| {
        open_with(&server, &database, |options| {
            options.prepare = prepare;
            options.connections_max = connections_max;
        })
        .await
    };
    // A store with a single connection has no session settings.
    let stores = [open_one(true, 2).await, open_one(true, 1).await, open_one(false, 2).await];
    for store in &stores[..2] {
        use_every_verb(store).await;
    }
    server.sql(&database, include_str!("fill.sql"));
    for (number, store) in stores.iter().enumerate() {
        let before = server.log().len();
        use_every_verb(store).await;
        let log = server.log();
        let log = &log[before..];
        for index in ["pkey", "due", "reap"] {
            assert!(log.contains(&format!("Index Scan using ibid_record_{index}")), "{index} is used");
        }
        for (statement, scan) in [
            ("the hot path: begins of new records", "Tid Scan on ibid_record r"),
            ("Scans records under the policy", "Index Scan using ibid_record_reap on ibid_record x"),
            ("Returns records in one state whose due", "Index Scan using ibid_record_due on ibid_record r"),
            (
                "Takes one step of the reaper over records",
                "Index Scan using ibid_record_reap on ibid_record r",
            ),
        ] {
            let plan =
                log.split("Query Text").find(|plan| plan.to_lowercase().contains(&statement.to_lowercase()));
            let plan = plan.unwrap_or_else(|| panic!("`{statement}` was not run by store {number}"));
            assert!(plan.contains(scan), "by store {number}: {plan}");
        }
        for table in ["ibid_record", "ibid_body", "ibid_effect", "ibid_event"] {
            let scan = log.find(&format!("Seq Scan on {table}"));
            let plan = scan.map(|at| &log[log[..at].rfind("Query Text").unwrap_or(at)..at]);
            assert_eq!(plan, None, "{table} is scanned by store {number}");
        }
        // Not all servers re-check a row's ctid after they waited for it, so the version must be compared too.
        for (at, _) in log.match_indices("Tid Scan on ibid_record r") {
            let filter = log[at..].lines().take(5).find(|line| line.contains("Filter:")).unwrap_or_default();
            for column in ["(id IS DISTINCT FROM v.id)", "(count = $", "= nonce"] {
                assert!(filter.contains(column), "by store {number}: {filter}");
            }
        }
        for table in ["ibid_record", "ibid_body", "ibid_effect", "ibid_event"] {
            for (at, _) in log.match_indices(&format!("Scan using {table}_")) {
                let mut lines = log[at..].lines();
                let (scan, next) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
                assert!(
                    next.contains("Index Cond"),
                    "{scan}, from one end to the other, by store {number}: {next}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flight_in_a_session_without_its_settings_writes_nothing() {
    let server = Postgres::shared();
    let database = server.create_database();
    drop(open(&server, &database).await);
    let fly = |set: &str, begins: &str, finishes: &str, ids: &str| {
        let flight = include_str!("../../../src/store/postgres/hot/flight.sql");
        let run = format!("execute flight({begins}::ibid_fresh_row[], {finishes}::ibid_finish_row[], {ids})");
        server.sql(&database, &format!("{set}; prepare flight as {flight}; {run}"));
        server.sql(
            &database,
            "select count(*), coalesce(max(state), 0), coalesce(max(count), 0) from ibid_record",
        )
    };
    let begin = |set| {
        let row = format!("array[row('{ID}', 1, 1, 1, 1, 0, null, 't', 'm', 'p', 'k', null)]");
        fly(set, &row, "'{}'", &format!("array['{ID}'::uuid]"))
    };
    let finish = |set| {
        let row = format!("array[row('(0,1)', '{ID}', 1, 2, 1, 1, 201, 3, 0, null, 'a: b', 'answer', null)]");
        fly(set, "'{}'", &row, "'{}'")
    };
    assert_eq!(begin("set jit = off"), "0|0|0");
    assert_eq!(begin("set ibid.settings = on"), "1|2|1");
    assert_eq!(finish("set jit = off"), "1|2|1");
    assert_eq!(finish("set ibid.settings = on"), "1|3|2");
    assert_eq!(server.sql(&database, "select body from ibid_record"), "\\x616e73776572");
}

const ID: &str = "00000000-0000-0000-0000-000000000001";

/// Runs every statement often enough that the server settles on a plan.
async fn use_every_verb(store: &PostgresStore) {
    for _ in 0..10 {
        let begins: Vec<Change> = (0..64).map(|_| begin()).collect();
        let ids: Vec<RecordId> = begins.iter().map(|change| change.id).collect();
        commit_all(store, begins).await;
        let records = records(store, &ids).await;
        // A renewed row has moved, so its finish takes another path.
        let leases = records.iter().skip(32).map(|record| (record.id, record.version)).collect();
        store.renew(leases).await.expect("a renewal succeeds");
        let take = |record: &Record| take_over(record, draft(&name_of(record), State::Completed));
        commit_all(store, records.iter().map(take).collect()).await;
        commit_all(store, records.iter().map(finish).collect()).await;
        // More than are due, so that it scans first leases too.
        store.due(State::InProgress, None, 1000).await.expect("due is answered");
        for course in
            [ReapTarget::Records, ReapTarget::Effects { keep: LONG }, ReapTarget::History { keep: LONG }]
        {
            store.reap(course, None, 10).await.expect("a reaping succeeds");
        }
    }
}

/// Upkeep's sort keys are set at the begin, so a finish changes none of them; and its page has room for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finish_touches_no_index_and_stays_in_its_page() {
    let server = Postgres::start_with(&[("autovacuum", "off")]);
    let database = server.create_database();
    let store = open(&server, &database).await;
    let begins: Vec<Change> = (0..200).map(|_| begin()).collect();
    let ids: Vec<RecordId> = begins.iter().map(|change| change.id).collect();
    commit_all(&*store, begins).await;
    commit_all(&*store, records(&store, &ids).await.iter().map(finish).collect()).await;
    drop(store);
    assert_eq!(updates(&server, &database), (200, 200));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_row_that_moves_in_an_index_leaves_its_page() {
    let server = Postgres::start_with(&[("autovacuum", "off")]);
    let database = server.create_database();
    let store = open(&server, &database).await;
    let begins: Vec<Change> = (0..50).map(|_| begin()).collect();
    let ids: Vec<RecordId> = begins.iter().map(|change| change.id).collect();
    commit_all(&*store, begins).await;
    let leases = records(&store, &ids).await.iter().map(|record| (record.id, record.version)).collect();
    store.renew(leases).await.expect("a renewal succeeds");
    drop(store);
    assert_eq!(updates(&server, &database), (50, 0), "a renewal enters the order of what is due");

    let store = open(&server, &database).await;
    commit_all(&*store, records(&store, &ids).await.iter().map(finish).collect()).await;
    drop(store);
    assert_eq!(updates(&server, &database), (100, 0), "its finish leaves that again");

    let store = open(&server, &database).await;
    let noted = |record: &Record| {
        let note = RecordDetails { provider_id: Some("pi_1".to_owned()), ..record.note.clone() };
        let (expires_in, purge_in) = (Some(2 * LONG), Some(record.policy.retention));
        replace(record, Draft { note, expires_in, purge_in, ..draft(&name_of(record), record.state) })
    };
    commit_all(&*store, records(&store, &ids).await.iter().map(noted).collect()).await;
    drop(store);
    assert_eq!(updates(&server, &database), (150, 0), "it moves to an earlier place of the reaper's");

    let store = open(&server, &database).await;
    let later =
        |record: &Record| Draft { expires_in: Some(3 * LONG), ..noted(record).draft.expect("a draft") };
    commit_all(
        &*store,
        records(&store, &ids).await.iter().map(|record| replace(record, later(record))).collect(),
    )
    .await;
    drop(store);
    let (all, hot) = updates(&server, &database);
    assert_eq!(all, 200);
    assert!(hot > 25, "most of 50 find room in their page: {hot}");
}

async fn records(store: &PostgresStore, ids: &[RecordId]) -> Vec<Record> {
    let loaded = load_all(store, ids.iter().copied()).await;
    loaded.into_iter().map(|stored| Arc::unwrap_or_clone(stored.record)).collect()
}

/// Returns the number of updates, and of those that touched no index. A backend reports them at the latest when it ends.
fn updates(server: &Postgres, database: &str) -> (u64, u64) {
    let there = "select count(*) from pg_stat_activity where application_name = 'ibid'";
    while server.sql(database, there) != "0" {}
    let counts = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'ibid_record'";
    let row = server.sql(database, counts);
    let (all, hot) = row.split_once('|').expect("two columns");
    (all.parse().expect("a number"), hot.parse().expect("a number"))
}
