//! Plans that the server chooses for the statements, and updates that stay within their page.

use ibid_core::reap::ReapTarget;
use ibid_core::record::RecordDetails;
use ibid_core::scope::RecordId;
use ibid_core::store::RecordFilter;
use ibid_testkit::contract::{load_all, take_over};

use super::*;

on_every_release!(no_hot_path_statement_scans_a_table);
async fn no_hot_path_statement_scans_a_table(release: PostgresRelease) {
    let server = Postgres::start_release(
        release,
        &[
            // It logs the plan of every statement as it was run.
            ("session_preload_libraries", "auto_explain"),
            ("auto_explain.log_min_duration", "0"),
            // The planner's statistics are not refreshed.
            ("autovacuum", "off"),
        ],
    );
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
        check_indexes(log, number);
        check_no_table_scan(log, number);
        check_row_location_filters(log, number);
        check_index_conditions(log, number);
    }
}

/// Checks that every index of records is used, and that each statement goes by its own.
fn check_indexes(log: &str, number: usize) {
    for index in ["pkey", "due", "reap"] {
        assert!(log.contains(&format!("Index Scan using ibid_record_{index}")), "{index} is used");
    }
    for (statement, scan) in PLANS {
        let plan = log.split("Query Text: -- ").find(|plan| plan.starts_with(statement));
        let plan = plan.unwrap_or_else(|| panic!("`{statement}` was not run by store {number}"));
        assert!(plan.contains(scan), "by store {number}: {plan}");
    }
}

/// Checks that no table is read from its first row to its last.
fn check_no_table_scan(log: &str, number: usize) {
    for table in TABLES {
        let scan = log.find(&format!("Seq Scan on {table}"));
        let plan = scan.map(|at| &log[log[..at].rfind("Query Text").unwrap_or(at)..at]);
        assert_eq!(plan, None, "{table} is scanned by store {number}");
    }
}

/// Checks that a row that is found by its ctid is compared by its id and version.
///
/// Not all servers re-check a row's ctid after they waited for it, so the version must be compared too.
fn check_row_location_filters(log: &str, number: usize) {
    for (at, _) in log.match_indices("Tid Scan on ibid_record r") {
        let filter = log[at..].lines().take(5).find(|line| line.contains("Filter:")).unwrap_or_default();
        for column in ["(id IS DISTINCT FROM v.id)", "(count = ", "= nonce"] {
            assert!(filter.contains(column), "by store {number}: {filter}");
        }
    }
}

/// Checks that no index is read from one end to the other.
fn check_index_conditions(log: &str, number: usize) {
    for table in TABLES {
        for (at, _) in log.match_indices(&format!("Scan using {table}_")) {
            let mut lines = log[at..].lines();
            let (scan, next) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
            // The index of dead letters has nothing else, and its count is bounded.
            assert!(
                next.contains("Index Cond")
                    || scan.contains("ibid_record_dead")
                    || scan.contains("ibid_effect_dead"),
                "{scan}, from one end to the other, by store {number}: {next}"
            );
        }
    }
}

const TABLES: [&str; 4] = ["ibid_record", "ibid_body", "ibid_effect", "ibid_event"];

/// Statements, by the beginning of their comment, and the scan that each plan has.
const PLANS: [(&str, &str); 12] = [
    ("The hot path: begins of new records", "Tid Scan on ibid_record r"),
    ("The hot path where only finishes wait", "Tid Scan on ibid_record r"),
    ("Scans records under the policies", "Index Only Scan using ibid_record_reap on ibid_record y"),
    ("Scans records under the policies", "Index Scan using ibid_record_reap on ibid_record x"),
    ("Returns records in one state whose due", "Index Scan using ibid_record_due on ibid_record r"),
    ("Takes one step of the reaper over records", "Index Scan using ibid_record_reap on ibid_record r"),
    ("Takes one step of the reaper over policies", "Index Only Scan using ibid_record_reap on ibid_record r"),
    ("Counts what an index has", "using ibid_record_due on ibid_record r"),
    ("Counts records in the state", "Index Scan Backward using ibid_record_reap on ibid_record r"),
    ("Lists dead letters", "Index Scan using ibid_record_dead on ibid_record r"),
    ("Lists records in the state", "Index Scan using ibid_record_due on ibid_record r"),
    ("Lists records in the order of ids", "Index Scan using ibid_record_pkey on ibid_record r"),
];

on_every_release!(a_flight_in_a_session_without_its_settings_writes_nothing);
async fn a_flight_in_a_session_without_its_settings_writes_nothing(release: PostgresRelease) {
    let server = Postgres::start_release(release, &[]);
    let database = server.create_database();
    drop(open(&server, &database).await);
    let fly = |set: &str, begins: &str, finishes: &str, ids: &str| {
        let flight = include_str!("../../../src/store/postgres/hot_path/flight.sql");
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

/// Runs every statement often enough that the server settles on a plan: it plans each of five runs, and then decides.
async fn use_every_verb(store: &PostgresStore) {
    let mut taken = None;
    for _ in 0..6 {
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
        // Few finishes fly together with begins.
        let (begins, few): (Vec<Change>, Vec<Change>) =
            ((0..64).map(|_| begin()).collect(), (0..3).map(|_| begin()).collect());
        let few_ids: Vec<RecordId> = few.iter().map(|change| change.id).collect();
        commit_all(store, few).await;
        let finishes = self::records(store, &few_ids).await;
        commit_all(store, [begins, finishes.iter().map(finish).collect()].concat()).await;
        // More than are due, so that it scans first leases too.
        store.due(State::InProgress, None, 1000).await.expect("due is answered");
        let (effects, history) = (ReapTarget::Effects { keep: LONG }, ReapTarget::History { keep: LONG });
        for course in [ReapTarget::Records, effects, history, ReapTarget::Policies] {
            store.reap(course, None, 10).await.expect("a reaping succeeds");
        }
        browse(store).count().await.expect("it is counted");
        for (dead_letter, state) in [(true, None), (false, Some(State::Unknown)), (false, None)] {
            let filter = RecordFilter::default().with(|filter| {
                (filter.dead_letter, filter.state, filter.limit) = (dead_letter, state, 10);
                // In the order of ids it would read the whole table, page by page.
                filter.tenant = (dead_letter || state.is_some()).then(|| "absent".to_owned());
            });
            browse(store).list(filter).await.expect("a list");
        }
        browse(store).history(ids[0]).await.expect("a history");
        taken = Some(ids[0]);
    }
    // Flights look for taken ids again once one has met some.
    let retry = Change { id: taken.expect("a record"), ..begin() };
    commit_all(store, vec![retry]).await;
}

on_every_release!(a_finish_touches_no_index_and_stays_in_its_page);
/// Upkeep's sort keys are set at the begin, so a finish changes none of them; and its page has room for it.
async fn a_finish_touches_no_index_and_stays_in_its_page(release: PostgresRelease) {
    let server = Postgres::start_release(release, &[("autovacuum", "off")]);
    let database = server.create_database();
    let store = open(&server, &database).await;
    let begins: Vec<Change> = (0..200).map(|_| begin()).collect();
    let ids: Vec<RecordId> = begins.iter().map(|change| change.id).collect();
    commit_all(&*store, begins).await;
    commit_all(&*store, records(&store, &ids).await.iter().map(finish).collect()).await;
    drop(store);
    assert_eq!(updates(&server, &database), (200, 200));
}

on_every_release!(only_a_row_that_moves_in_an_index_leaves_its_page);
async fn only_a_row_that_moves_in_an_index_leaves_its_page(release: PostgresRelease) {
    let server = Postgres::start_release(release, &[("autovacuum", "off")]);
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
