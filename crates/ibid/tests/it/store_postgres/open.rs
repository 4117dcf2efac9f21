//! Opening a store: the schema, and servers that are refused.

use ibid::store::postgres::PostgresOpenError;
use ibid_testkit::contract::put;

use super::*;

/// Returns everything that makes up a schema, from the catalogs.
fn catalog(server: &Postgres, database: &str) -> String {
    let columns =
        "select c.relname, c.relkind, c.reloptions, a.attname, format_type(a.atttypid, a.atttypmod),
                          a.attnotnull, a.attstorage, a.attidentity
                   from pg_class c join pg_attribute a on a.attrelid = c.oid
                   where c.relname like 'ibid%' and a.attnum > 0 and not a.attisdropped
                   order by c.relname, a.attnum";
    let constraints = "select conname, pg_get_constraintdef(oid) from pg_constraint
                       where conname like 'ibid%' order by conname";
    let indices =
        "select indexname, indexdef from pg_indexes where indexname like 'ibid%' order by indexname";
    let steps = "select * from ibid_schema_step order by number";
    [columns, constraints, indices, steps].map(|sql| server.sql(database, sql)).join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_printed_migration_makes_the_stores_schema() {
    let server = Postgres::shared();
    let (ours, theirs, both) = (server.create_database(), server.create_database(), server.create_database());
    open(&server, &ours).await;
    server.sql(&theirs, &PostgresStore::migration_sql(0));
    let made = catalog(&server, &ours);
    assert!(made.contains("ibid_effect_call_key") && made.contains("ibid_record_reap"), "{made}");
    assert_eq!(made, catalog(&server, &theirs));
    open_with(&server, &theirs, |options| options.migrate = false).await;
    // Many open at once: one creates the schema, the others find it.
    let opened = futures_util::future::join_all((0..8).map(|_| open(&server, &both))).await;
    assert_eq!(opened.len(), 8);
    assert_eq!(made, catalog(&server, &both));
    let newest = PostgresStore::newest_schema();
    assert!(!PostgresStore::migration_sql(newest).contains("create"), "nothing is left to do");
}

/// Otherwise an application that publishes all its tables, for a replica or for change capture, could not use ibid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_table_can_be_published() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    server.sql(&database, "create publication everything for all tables");
    let running = put(&*store, &begin()).await.record;
    put(&*store, &finish(&running)).await;
    store.due(State::InProgress, None, 1).await.expect("due is answered");
    let keyless = "select c.relname from pg_class c
                   where c.relname like 'ibid%' and c.relkind = 'r'
                     and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)";
    assert_eq!(server.sql(&database, keyless), "");
}

#[tokio::test]
async fn the_tables_are_made_in_the_first_schema_of_the_search_path() {
    let server = Postgres::shared();
    let database = server.create_database();
    server.sql(&database, "create schema guard");
    server.sql("postgres", &format!("alter database {database} set search_path = guard, public"));
    open(&server, &database).await;
    let schemas = "select distinct schemaname from pg_tables where tablename like 'ibid%'";
    assert_eq!(server.sql(&database, schemas), "guard");
}

async fn refusal(url: &str, options: PostgresOptions) -> PostgresOpenError {
    match PostgresStore::open(url, options).await {
        Err(error) => error,
        Ok(store) => panic!("{} was opened", store.display_url()),
    }
}

#[tokio::test]
async fn a_schema_that_is_not_ours_to_use_is_refused() {
    let server = Postgres::shared();
    let database = server.create_database();
    let url = server.url_for(&database);
    let no_migration = || options().with(|options| options.migrate = false);
    let missing = refusal(&url, no_migration()).await;
    assert!(matches!(missing, PostgresOpenError::NotMigrated { found: 0, .. }), "{missing:?}");
    open(&server, &database).await;
    let newest = PostgresStore::newest_schema();
    let later = |needs: u32| {
        let step = newest + 1;
        server.sql(
            &database,
            &format!(
                "insert into ibid_schema_step values ({step}, '', {needs})
                                        on conflict (number) do update set needs_at_least = {needs}"
            ),
        );
    };
    later(newest);
    open_with(&server, &database, |options| options.migrate = false).await;
    later(newest + 1);
    for options in [options(), no_migration()] {
        let future = refusal(&url, options).await;
        assert!(
            matches!(future, PostgresOpenError::FromTheFuture { found, .. } if found == newest + 1),
            "{future:?}"
        );
    }
    server.sql(
        &database,
        "delete from ibid_schema_step where digest = ''; update ibid_schema_step set digest = '\\x00'",
    );
    let altered = refusal(&url, options()).await;
    assert!(matches!(altered, PostgresOpenError::Altered { number: 1, .. }), "{altered:?}");
    server.sql(&database, "create table ibid_migration (number int)");
    let earlier = refusal(&url, options()).await;
    assert!(matches!(earlier, PostgresOpenError::EarlierBuild { .. }), "{earlier:?}");
}

#[tokio::test]
async fn a_step_that_excludes_a_running_program_stops_it() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let later = PostgresStore::newest_schema() + 1;
    let step = |needs: u32| {
        let needs = format!("on conflict (number) do update set needs_at_least = {needs}");
        server.sql(&database, &format!("insert into ibid_schema_step values ({later}, '', 1) {needs}"));
    };
    step(1);
    store.setting("identity").await.expect("a step that only adds something stops nothing");
    assert!(matches!(commit_patiently(&store, &Arc::new(begin())).await, Commit::Done(_)));
    step(later);
    // As the engine does every few seconds.
    assert!(!store.setting("identity").await.expect_err("it is excluded").is_transient());
    for change in [begin(), other_begin(&TestRecord::fresh())] {
        let refused = store.commit(Arc::new(change), None).await.expect_err("it is excluded");
        assert!(!refused.is_transient() && refused.is_unwritten(), "{refused:?}");
    }
    assert_eq!(server.sql(&database, "select count(*) from ibid_record"), "1");
}

#[tokio::test]
async fn a_server_that_may_lose_commits_is_refused_by_default() {
    let server = Postgres::start();
    let database = server.create_database();
    let url = server.url_for(&database);
    let set = |value: &str| {
        server.sql("postgres", &format!("alter database {database} set synchronous_commit = {value}"));
    };
    set("off");
    let weak = refusal(&url, options()).await;
    let message = weak.to_string();
    assert!(
        matches!(weak, PostgresOpenError::WeakDurability { setting: "synchronous_commit", .. }),
        "{weak:?}"
    );
    assert!(message.contains("synchronous_commit = off"), "it says what to change: {message}");
    open_with(&server, &database, |options| options.accept_weak_durability = true).await;
    // Without standbys none of these is weaker than the disk.
    for as_good in ["local", "remote_write", "remote_apply", "on"] {
        set(as_good);
        open(&server, &database).await;
    }
    server.set("synchronous_standby_names", "second");
    for weaker in ["local", "remote_write"] {
        // The setting itself must not wait for a standby that does not exist.
        server.sql(
            "postgres",
            &format!(
                "set synchronous_commit = local; alter database {database} set synchronous_commit = {weaker}"
            ),
        );
        let weak = refusal(&url, options()).await;
        assert!(matches!(weak, PostgresOpenError::WeakDurability { .. }), "{weak:?}");
    }
    let unflushed = Postgres::start_with(&[("fsync", "off")]);
    let weak = refusal(&unflushed.url(), options()).await;
    assert!(matches!(weak, PostgresOpenError::WeakDurability { setting: "fsync", .. }), "{weak:?}");
}

#[tokio::test]
async fn a_replica_is_refused_until_it_is_promoted() {
    let mut primary = Postgres::start();
    open(&primary, "postgres").await;
    let standby = primary.standby("second", &[]);
    let replica = refusal(&standby.url(), options()).await;
    assert!(matches!(replica, PostgresOpenError::ReadOnly { .. }), "{replica:?}");
    primary.stop_immediate();
    standby.promote();
    let store = open(&standby, "postgres").await;
    assert!(matches!(commit_patiently(&store, &Arc::new(begin())).await, Commit::Done(_)));
}

#[tokio::test]
async fn no_message_holds_the_password() {
    let server = Postgres::start();
    let assert_no_password = |error: &PostgresOpenError| {
        let mut text = format!("{error} {error:?}");
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            text.push_str(&format!(" {error} {error:?}"));
            cause = error.source();
        }
        assert!(!text.contains("hunter2"), "{text}");
    };
    let port = server.port();
    let stranger =
        refusal(&format!("postgres://stranger:hunter2@127.0.0.1:{port}/postgres"), options()).await;
    assert!(matches!(stranger, PostgresOpenError::Refused { .. }), "{stranger:?}");
    assert_no_password(&stranger);
    let nowhere = refusal("postgres://postgres:hunter2@127.0.0.1:1/postgres", options()).await;
    assert!(matches!(nowhere, PostgresOpenError::Unreachable { .. }), "{nowhere:?}");
    assert!(nowhere.to_string().contains("127.0.0.1:1/postgres"), "{nowhere}");
    assert_no_password(&nowhere);
    for unreadable in ["postgres://postgres:hunter2@127.0.0.1:x/", "hunter2"] {
        let bad = refusal(unreadable, options()).await;
        assert!(matches!(bad, PostgresOpenError::BadUrl), "{bad:?}");
        assert_no_password(&bad);
    }
    let url = format!("postgres://postgres:hunter2@127.0.0.1:{port}/postgres");
    let store = PostgresStore::open(&url, options()).await.expect("the store opens");
    assert!(!format!("{store:?}").contains("hunter2"), "nor the store itself");
}
