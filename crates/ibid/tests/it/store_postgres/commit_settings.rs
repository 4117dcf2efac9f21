//! Which statements wait for the disk, whatever the session is set to, and which never do.

use ibid_testkit::contract::put;

use super::*;

/// A step of a chore that a crash loses is repeated, so it must not cost a flush.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_step_of_a_chore_waits_for_the_disk() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    put(&*store, &begin()).await;
    let rows = "insert into ibid_event (at, id, what, detail) values (1, gen_random_uuid(), 'takeover', '');
         insert into ibid_evidence (as_of, purge_at, open, record, source, event, found)
           values (1, 1, false, gen_random_uuid(), 'source', 'event', '')";
    server.sql(&database, rows);
    server.sql(&database, &effects(1));
    for (sql, params) in [
        (include_str!("../../../src/store/postgres/sql/reap_records.sql"), &["0", "10", "'{}'"][..]),
        (include_str!("../../../src/store/postgres/sql/reap_effects.sql"), &["0", "0", "10"]),
        (include_str!("../../../src/store/postgres/sql/reap_history.sql"), &["0", "0", "10"]),
        (include_str!("../../../src/store/postgres/sql/reap_policies.sql"), &["0", "10", "10"]),
        (include_str!("../../../src/store/postgres/sql/evidence_purge.sql"), &["10"]),
    ] {
        let step =
            (1..).zip(params).fold(sql.to_owned(), |sql, (n, value)| sql.replace(&format!("${n}"), value));
        let setting = server.sql(&database, &format!("begin; {step}; show synchronous_commit; rollback"));
        assert_eq!(setting.lines().last(), Some("off"), "{sql}");
    }
}

/// Seven statements have the same lines, because a DBA should be able to explain each as it is, and a function in the schema would
/// be one more thing that a search path can replace.
#[test]
fn all_durable_writes_raise_the_setting_in_one_way() {
    for (sql, lasts) in [
        (include_str!("../../../src/outbox/sql/postgres/commit.sql"), 17),
        (include_str!("../../../src/outbox/sql/postgres/take.sql"), 6),
        (include_str!("../../../src/record_sql/postgres/insert.sql"), 29),
        (include_str!("../../../src/record_sql/postgres/update.sql"), 29),
        (include_str!("../../../src/store/postgres/sql/evidence_add.sql"), 8),
        (include_str!("../../../src/store/postgres/sql/setting_add.sql"), 3),
        (include_str!("../../../src/store/postgres/sql/setting_set.sql"), 4),
    ] {
        let text = sql.split_whitespace().collect::<Vec<_>>().join(" ");
        let raise = format!(
            "case when ${lasts}::boolean and current_setting('synchronous_commit') not in ('on', 'remote_apply') \
             then set_config('synchronous_commit', 'on', true) end as raised"
        );
        assert!(text.contains(&raise), "{sql}");
    }
}
