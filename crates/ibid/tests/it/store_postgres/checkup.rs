//! The checkup inspects a server without opening it, and describes what opening would refuse.

use ibid::store::checkup::{Checkup, OpenCases, Pooler, Role, Schema, Standby};
use ibid_core::record::Flags;
use ibid_testkit::postgres::PostgresPair;

use super::*;

pub(super) async fn checkup(url: &str) -> Checkup {
    PostgresStore::checkup(url, options()).await.expect("it can be looked at")
}

/// The standby as a user with permission sees it.
fn asynchronous() -> Standby {
    Standby { name: Some(PostgresPair::STANDBY.to_owned()), is_synchronous: Some(false) }
}

#[tokio::test]
async fn a_look_makes_nothing_and_tells_how_far_the_schema_is() {
    let server = Postgres::shared();
    let database = server.create_database();
    let url = server.url_for(&database);
    let report = checkup(&url).await;
    assert_eq!((report.schema, report.role, report.has_secret), (Schema::Absent, Role::Primary, false));
    assert_eq!(report.pooler, Some(Pooler::NotSeen));
    assert!(report.software.starts_with("PostgreSQL ") && report.needs.is_none(), "{report:?}");
    assert!(report.open_cases.is_none(), "there is nothing to count");
    assert_eq!(server.sql(&database, "select count(*) from pg_tables where tablename like 'ibid%'"), "0");

    let store = open(&server, &database).await;
    let known = PostgresStore::newest_schema();
    store.put_if_absent("secret", bytes::Bytes::from_static(b"s")).await.expect("it is kept");
    let name = TestRecord::fresh();
    let flags = Flags { dead_letter: true, ..Flags::default() };
    let unknown = insert(&name, Draft { flags, ..draft(&name, State::Unknown) });
    assert!(matches!(commit_patiently(&store, &Arc::new(unknown)).await, Commit::Done(_)));
    let report = checkup(&url).await;
    assert_eq!((report.schema, report.has_secret), (Schema::Step { found: known, known }, true));
    let cases = OpenCases { unknown: 1, dead_letters: 1, ..OpenCases::default() };
    assert_eq!(report.open_cases, Some(cases));

    server.sql(&database, &format!("insert into ibid_schema_step values ({0}, '', {0})", known + 1));
    assert_eq!(checkup(&url).await.schema, Schema::TooNew { found: known + 1, known });
    server.sql(&database, "update ibid_schema_step set needs_at_least = 1");
    let report = checkup(&url).await;
    assert_eq!(report.schema, Schema::Step { found: known + 1, known }, "it only added something");
    assert!(report.has_secret && report.open_cases.is_some());
    server.sql(
        &database,
        "delete from ibid_schema_step where digest = ''; update ibid_schema_step set digest = '\\x00'",
    );
    assert_eq!(checkup(&url).await.schema, Schema::Altered { number: 1 });
}

#[tokio::test]
async fn the_checkup_reads_the_settings_of_a_large_store() {
    let server = Postgres::start_with(&[("checkpoint_timeout", "30min"), ("max_wal_size", "8GB")]);
    let database = server.create_database();
    assert!(checkup(&server.url_for(&database)).await.tuning.is_none(), "there is no table of ours yet");
    drop(open(&server, &database).await);
    let alter = "alter table ibid_record set (autovacuum_enabled = false, autovacuum_vacuum_cost_delay = 0)";
    server.sql(&database, alter);
    let tuning = checkup(&server.url_for(&database)).await.tuning.expect("a server");
    assert_eq!((tuning.checkpoint_timeout.as_secs(), tuning.max_wal_bytes), (1800, 8 << 30));
    assert_eq!(
        (tuning.has_autovacuum, tuning.vacuum_cost_delay_ms, tuning.vacuum_cost_limit),
        (false, 0.0, 200)
    );
    assert_eq!(tuning.records, 0);
    assert!(tuning.index_bytes > 0 && tuning.shared_buffer_bytes > 0, "{tuning:?}");
}

#[tokio::test]
async fn the_checkup_reads_the_settings_of_our_session() {
    let server = Postgres::start_with(&[("full_page_writes", "off")]);
    let database = server.create_database();
    server.sql("postgres", &format!("alter database {database} set synchronous_commit = off"));
    let report = checkup(&server.url_for(&database)).await;
    let weak: Vec<_> =
        report.durability.iter().filter(|setting| setting.is_weak).map(|setting| setting.name).collect();
    assert_eq!(weak, ["synchronous_commit", "full_page_writes"]);
    assert!(!report.weak_accepted);
    let accepted = format!("{}?durability=weak", server.url_for(&database));
    assert!(checkup(&accepted).await.weak_accepted);
    server.sql("postgres", &format!("alter database {database} set default_transaction_read_only = on"));
    assert_eq!(checkup(&server.url_for(&database)).await.role, Role::ReadOnly);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standbys_are_reported_as_far_as_this_user_may_see() {
    let pair = tokio::task::block_in_place(PostgresPair::asynchronous);
    pair.primary.sql("postgres", "create role app login");
    let as_app = pair.primary.url().replace("postgres@", "app@");
    let standbys = checkup(&pair.primary.url()).await.standbys.expect("it is the primary");
    assert_eq!((standbys.awaited.as_str(), standbys.connected), ("", vec![asynchronous()]));
    let standbys = checkup(&as_app).await.standbys.expect("it is the primary");
    assert_eq!(standbys.connected.len(), 1, "the number of standbys is no secret");
    assert_eq!(standbys.connected[0].is_synchronous, None, "how closely is");
    pair.primary.sql("postgres", "grant pg_read_all_stats to app");
    let standbys = checkup(&as_app).await.standbys.expect("it is the primary");
    assert_eq!(standbys.connected, [asynchronous()]);

    let follower = checkup(&pair.standby.url()).await;
    assert_eq!((follower.role, follower.standbys), (Role::Standby, None));
}
