//! The plans of the SQLite store's statements: each goes by an index, or reads something that stays small.

use std::path::Path;

use ibid_core::record::State;
use ibid_testkit::contract::{TestRecord, draft, insert, put};
use rusqlite::{Connection, Statement, StatementStatus};

use crate::store_sqlite::{Sqlite, sqlite};

#[tokio::test]
async fn every_statement_goes_by_an_index() {
    let subject = filled_store().await;
    let connection = subject.file.other_connection();
    let mut scans = Vec::new();
    for (name, sql) in statements("src/store/sqlite/sql") {
        for step in plan(&connection, &sql) {
            let is_small = SMALL.iter().any(|small| step.starts_with(small));
            let is_allowed = |(statement, table, index): &(&str, &str, &str)| {
                *statement == name && step.starts_with(&format!("SCAN {table}")) && step.contains(index)
            };
            let scans_rows = step.starts_with("SCAN") || step.contains("TEMP B-TREE");
            if scans_rows && !is_small && !SCANS.iter().any(is_allowed) {
                scans.push((name.clone(), step));
            }
        }
    }
    assert_eq!(scans, []);
    for (name, index) in INDEXES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name);
        let plan = plan(&connection, &std::fs::read_to_string(path).expect("a statement"));
        assert!(plan.iter().any(|step| step.contains(index)), "{name}: not by {index}: {plan:?}");
    }
}

#[tokio::test]
async fn a_count_reads_no_more_rows_than_it_is_allowed() {
    const LIMIT: i64 = 10;
    let subject = filled_store().await;
    let connection = subject.file.other_connection();
    let now = i64::MAX / 2;
    let unknown = i64::from(State::UNSETTLED.code());
    let bounded: &[(&str, &[i64])] = &[
        ("count_small.sql", &[LIMIT, 3]),
        ("last_runs.sql", &[LIMIT]),
        ("count_open.sql", &[LIMIT]),
        ("count_dead_letters.sql", &[LIMIT]),
        ("count_effects.sql", &[LIMIT]),
        ("oldest_unknown.sql", &[unknown, LIMIT]),
        // These find more than they may read, so they delete nothing.
        ("reap_policies.sql", &[now, 100, LIMIT]),
        ("ripe_policies.sql", &[now, LIMIT]),
    ];
    let steps =
        || bounded.iter().map(|(name, params)| steps_of(&connection, name, params)).collect::<Vec<_>>();
    let before = steps();
    fill(&subject, 3);
    let after = steps();
    for (((name, _), before), after) in bounded.iter().zip(before).zip(after) {
        assert!(
            before > 0 && before == after,
            "{name}: {before} steps, and {after} with three times the rows"
        );
    }
}

/// Returns how many steps SQLite takes for a statement of the store.
fn steps_of(connection: &Connection, name: &str, params: &[i64]) -> i32 {
    let sql = statements("src/store/sqlite/sql").into_iter().find(|(which, _)| which == name);
    let mut statement = connection.prepare(&sql.expect("it is there").1).expect("it is prepared");
    for (at, param) in params.iter().enumerate() {
        statement.raw_bind_parameter(at + 1, param).expect("a parameter is bound");
    }
    let mut rows = statement.raw_query();
    while rows.next().expect("a row is read").is_some() {}
    drop(rows);
    statement.get_status(StatementStatus::VmStep)
}

/// Returns a store with more rows than a bounded statement may read.
async fn filled_store() -> Sqlite {
    let subject = sqlite();
    let name = TestRecord::fresh();
    put(&*subject.store, &insert(&name, draft(&name, State::Completed))).await;
    fill(&subject, 1);
    subject
}

/// Adds `times` 30 records of each kind that a statement counts, and as many dead effects.
fn fill(subject: &Sqlite, times: u32) {
    let filling = format!(
        "with recursive n (n) as (select 1 union all select n + 1 from n where n < 30 * {times}),
              kind (state, flags, watch_at, reap_at) as (
                values (3, 0, null, null), (2, 0, 1, null), (5, 0, 2, null), (3, 1, null, null), (3, 0, null, 1)
              )
         insert into ibid_record (id, count, nonce, birth, state, flags, policy, created_at, purge_at, watch_at, reap_at,
                                  tenant, method, path, key)
         select randomblob(16), 1, 1, 1, k.state, k.flags, r.policy, 1, 1, k.watch_at, k.reap_at, 'shop', 'POST', '/', n
         from n, kind k, (select policy from ibid_record limit 1) r;
         with recursive n (n) as (select 1 union all select n + 1 from n where n < 30 * {times})
         insert into ibid_effect (nonce, lease_us, created_at, count, tries, state, blocked, dead_letter, tenant, kind)
         select 1, 1, 1, 1, 1, 5, 0, 1, 'shop', 'mail' from n"
    );
    subject.file.other_connection().execute_batch(&filling).expect("rows are added");
}

/// Returns the statements of a folder, by file name.
fn statements(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files =
        std::fs::read_dir(folder).expect("the folder is read").map(|file| file.expect("a file").path());
    let read = |path: &Path| std::fs::read_to_string(path).expect("a statement");
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    files.map(|path| (name(&path), read(&path))).collect()
}

fn plan(connection: &Connection, sql: &str) -> Vec<String> {
    let mut explain = connection.prepare(&format!("explain query plan {sql}")).expect("it is explained");
    run(&mut explain, 0)
}

/// Runs a statement with `value` for each parameter. Returns the fourth column, where a plan has its steps.
fn run(statement: &mut Statement<'_>, value: i32) -> Vec<String> {
    for at in 1..=statement.parameter_count() {
        statement.raw_bind_parameter(at, value).expect("a parameter is bound");
    }
    let mut rows = statement.raw_query();
    let mut texts = Vec::new();
    while let Some(row) = rows.next().expect("a row is read") {
        texts.push(row.get::<_, String>(3).unwrap_or_default());
    }
    texts
}

/// Steps that read something small in any statement.
const SMALL: &[&str] =
    &["SCAN CONSTANT ROW", "SCAN (subquery", "SCAN json_each", "SCAN pragma_", "SCAN sqlite_schema"];

/// Statements that scan all the same: the table, and the index if it has few of the table's rows.
const SCANS: &[(&str, &str, &str)] = &[
    // Records and effects that wait for upkeep or an operator, by an index that has no others, and a bounded number of them: see the
    // test of counts.
    ("count_dead_letters.sql", "ibid_record", "ibid_record_dead_letter"),
    ("count_effects.sql", "ibid_effect", "ibid_effect_dead"),
    ("reap_policies.sql", "r", "ibid_record_open"),
    ("ripe_policies.sql", "r", "ibid_record_open"),
    // The output of these statements, and the states of records.
    ("reap_policies.sql", "open", ""),
    ("reap_policies.sql", "overdue", ""),
    ("ripe_policies.sql", "open", ""),
    ("ripe_policies.sql", "overdue", ""),
    ("count_open.sql", "k", ""),
    // Policies: as many as routes. Ranges: one for a thousand records.
    ("policies.sql", "ibid_policy", ""),
    ("reap_policies.sql", "p", ""),
    ("reap_policies_look.sql", "ibid_policy", ""),
    ("ripe_policies.sql", "p", ""),
    ("ripe_ranges.sql", "ibid_reap_range", ""),
    // A table of one row.
    ("count_estimate.sql", "ibid_ordered", ""),
    ("order_lower.sql", "ibid_ordered", ""),
    ("order_position.sql", "ibid_ordered", ""),
    ("order_set.sql", "ibid_ordered", ""),
    // They stop after some rows: see the test of counts.
    ("count_small.sql", "ibid_record", ""),
    ("last_runs.sql", "ibid_record", ""),
    // `ibid reap --dry-run` counts on the thread of operators.
    ("ripe_effects.sql", "", ""),
    ("ripe_history.sql", "e", ""),
];

/// Indexes that statements must use.
const INDEXES: &[(&str, &str)] = &[
    ("record_sql/sqlite/load.sql", "sqlite_autoindex_ibid_record_1"),
    ("record_sql/sqlite/lock.sql", "sqlite_autoindex_ibid_record_1"),
    ("record_sql/sqlite/update.sql", "sqlite_autoindex_ibid_record_1"),
    ("record_sql/sqlite/body_clear.sql", "PRIMARY KEY"),
    ("store/sqlite/sql/renew.sql", "sqlite_autoindex_ibid_record_1"),
    ("store/sqlite/sql/due.sql", "ibid_record_open"),
    ("store/sqlite/sql/list_open.sql", "ibid_record_open"),
    ("store/sqlite/sql/list_dead_letters.sql", "ibid_record_dead_letter"),
    ("store/sqlite/sql/list_ids.sql", "sqlite_autoindex_ibid_record_1"),
    ("store/sqlite/sql/list_rows.sql", "PRIMARY KEY"),
    ("store/sqlite/sql/history.sql", "ibid_event_id"),
    ("store/sqlite/sql/oldest_unknown.sql", "ibid_record_open (state=?"),
    ("store/sqlite/sql/count_open.sql", "COVERING INDEX ibid_record_open"),
    ("store/sqlite/sql/count_dead_letters.sql", "ibid_record_dead_letter"),
    ("store/sqlite/sql/count_effects.sql", "ibid_effect_dead"),
    ("store/sqlite/sql/effects.sql", "ibid_effect_state"),
    ("store/sqlite/sql/evidence_of.sql", "ibid_evidence_record"),
    ("store/sqlite/sql/evidence_open.sql", "ibid_evidence_open"),
    ("store/sqlite/sql/evidence_purge.sql", "ibid_evidence_purge"),
    ("store/sqlite/sql/order_watch.sql", "PRIMARY KEY"),
    ("store/sqlite/sql/reap_range.sql", "ibid_reap_range_at"),
    ("store/sqlite/sql/reap_range_left.sql", "PRIMARY KEY"),
    ("store/sqlite/sql/reap_pick.sql", "ibid_record_reap"),
    ("store/sqlite/sql/reap_pick.sql", "sqlite_autoindex_ibid_effect_call_1"),
    ("store/sqlite/sql/ripe_index.sql", "ibid_record_reap"),
    ("store/sqlite/sql/reap_strip.sql", "PRIMARY KEY"),
    ("store/sqlite/sql/reap_row.sql", "PRIMARY KEY"),
    ("store/sqlite/sql/reap_bodies.sql", "PRIMARY KEY"),
    ("store/sqlite/sql/reap_payloads.sql", "sqlite_autoindex_ibid_effect_call_1"),
    ("store/sqlite/sql/reap_effects.sql", "PRIMARY KEY"),
    ("store/sqlite/sql/reap_effects.sql", "sqlite_autoindex_ibid_record_1"),
    ("store/sqlite/sql/reap_history.sql", "PRIMARY KEY"),
    ("store/sqlite/sql/reap_history.sql", "sqlite_autoindex_ibid_record_1"),
];
