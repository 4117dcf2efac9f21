//! The MariaDB server for tests: it preserves commits, ends with its process, and takes settings.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use ibid_testkit::mariadb::MariaDb;

use crate::others_server::OthersServer;

#[test]
fn each_mariadb_is_durable_and_apart() {
    let mut server = MariaDb::start_with(&[("max_connections", "20")]);
    let durable = "select @@innodb_flush_log_at_trx_commit, @@sync_binlog, @@log_bin, @@binlog_format, @@max_connections";
    assert_eq!(server.sql("", durable), "1|1|1|ROW|20");
    let (one, other) = (server.create_database(), server.create_database());
    server.sql(&one, "create table t (n int); insert into t values (1)");
    assert!(server.try_sql(&other, "select * from t").unwrap_err().contains("1146"), "databases are apart");
    let url = server.url_for(&one);
    server.restart();
    assert_eq!(server.url_for(&one), url, "it comes back where it was");
    assert_eq!(server.sql(&one, "select n from t"), "1");
    server.stop_fast();
    assert!(server.try_sql(&one, "select 1").is_err(), "it is down");
    server.start_again();
    assert_eq!(server.sql(&one, "select n from t"), "1");
}

#[test]
fn a_mariadb_takes_weaker_settings() {
    let server = MariaDb::start_with(&[("sync_binlog", "0"), ("binlog_format", "STATEMENT")]);
    assert_eq!(server.sql("", "select @@sync_binlog, @@binlog_format"), "0|STATEMENT");
}

#[test]
fn a_mariadb_session_holds_its_locks_until_it_is_dropped() {
    let server = MariaDb::shared();
    let database = server.database();
    server.sql(database, "create table t (n int)");
    let session = server.session(database, "lock tables t read");
    let insert = "set lock_wait_timeout = 1; insert into t values (1)";
    assert!(server.try_sql(database, insert).unwrap_err().contains("1205"), "it is locked");
    drop(session);
    server.sql(database, "insert into t values (2)");
    assert_eq!(server.sql(database, "select n from t"), "2");
}

#[test]
fn each_share_of_mariadb_has_its_own_databases() {
    let (one, other) = (MariaDb::shared(), MariaDb::shared());
    assert_eq!(one.port(), other.port(), "one server");
    one.sql(one.database(), "create table t (n int)");
    assert!(other.try_sql(other.database(), "select * from t").is_err(), "databases are apart");
    let left =
        format!("select count(*) from information_schema.schemata where schema_name = '{}'", one.database());
    let is_in_memory = one.sql("", "select @@datadir").starts_with("/dev/shm");
    drop(one);
    assert_eq!(
        other.sql("", &left),
        if is_in_memory { "0" } else { "1" },
        "on a disk it goes with the server"
    );
}

/// Not a test by itself: the test below runs it in a separate process.
#[test]
#[ignore = "it is killed by another test"]
fn a_process_with_mariadb_that_is_killed() {
    let server = MariaDb::start();
    print_pid(&server);
    // It is killed here; until then it waits for input that never arrives.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn no_mariadb_outlives_a_process_that_is_killed() {
    let mut process = Command::new(std::env::current_exe().expect("this test"));
    process.args(["--ignored", "--exact", "--nocapture", "mariadb::a_process_with_mariadb_that_is_killed"]);
    let mut process = process.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let server = OthersServer::of(&mut process);
    process.kill().expect("it can be killed");
    process.wait().expect("it ends");
    server.ends();
}

/// Not a test by itself: the test below runs it in a separate run.
#[test]
#[ignore = "it is a test of another run"]
fn a_test_with_mariadb_of_another_run() {
    print_pid(&MariaDb::shared());
    // It ends when its input does.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn the_shared_mariadb_ends_with_its_run() {
    // The shell plays the runner.
    let mut run = Command::new("sh");
    run.args([
        "-c",
        "\"$0\" --ignored --exact --nocapture mariadb::a_test_with_mariadb_of_another_run; true",
    ]);
    run.arg(std::env::current_exe().expect("this test")).env("NEXTEST_RUN_ID", "another");
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let server = OthersServer::of(&mut run);
    drop(run.stdin.take());
    assert!(run.wait().expect("it ends").success());
    server.ends();
}

fn print_pid(server: &MariaDb) {
    let (data, file) = (server.sql("", "select @@datadir"), server.sql("", "select @@pid_file"));
    let pid = fs::read_to_string(Path::new(&data).join(file)).expect("the server's pid");
    println!("\npid {}", pid.trim());
}
