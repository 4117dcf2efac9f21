//! The server for tests: it preserves commits, ends with its process, and its parts make a failover.

use std::process::{Command, Stdio};

use ibid_testkit::postgres::{Postgres, PostgresPair};

use crate::others_server::OthersServer;

#[test]
fn each_test_gets_separate_durable_databases() {
    let mut server = Postgres::start_with(&[("max_connections", "20")]);
    assert_eq!(server.sql("postgres", "show fsync"), "on", "durability is part of what is tested");
    assert_eq!(server.sql("postgres", "show max_connections"), "20", "settings are taken");
    let (one, other) = (server.create_database(), server.create_database());
    server.sql(&one, "create table t (n int); insert into t values (1)");
    assert!(server.try_sql(&other, "select * from t").is_err(), "databases are apart");
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
fn a_promoted_standby_has_every_commit() {
    let mut pair = PostgresPair::synchronous();
    pair.primary.sql("postgres", "set synchronous_commit = remote_apply; create table t as select 7 as n");
    assert_eq!(pair.standby.sql("postgres", "select pg_is_in_recovery(), n from t"), "t|7");
    pair.primary.stop_immediate();
    pair.standby.promote();
    assert_eq!(pair.standby.sql("postgres", "insert into t values (8) returning n"), "8");
}

#[test]
fn a_server_that_is_killed_leaves_no_process_and_recovers() {
    let mut server = Postgres::start();
    server.sql("postgres", "create table t as select 7 as n");
    server.kill();
    assert!(server.try_sql("postgres", "select 1").is_err(), "no server answers");
    // It would refuse if a process of the previous server still used its memory.
    server.start_again();
    assert_eq!(server.sql("postgres", "select n from t"), "7");
    assert!(server.log().contains("not properly shut down"), "{}", server.log());
}

/// Not a test by itself: the test below runs it in a separate process.
#[test]
#[ignore = "it is killed by another test"]
fn a_process_that_is_killed() {
    let server = Postgres::start();
    println!("\npid {}", server.sql("postgres", "select pg_read_file('postmaster.pid', 0, 20)"));
    // It is killed here; until then it waits for input that never arrives.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn no_server_outlives_a_process_that_is_killed() {
    let mut process = Command::new(std::env::current_exe().expect("this test"));
    process.args(["--ignored", "--exact", "--nocapture", "postgres::a_process_that_is_killed"]);
    let mut process = process.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let server = OthersServer::of(&mut process);
    process.kill().expect("it can be killed");
    process.wait().expect("it ends");
    server.ends();
}

#[test]
fn each_share_of_the_server_has_its_own_databases() {
    let (one, other) = (Postgres::shared(), Postgres::shared());
    assert_eq!(one.port(), other.port(), "one server");
    assert_eq!(one.sql(one.database(), "show fsync"), "on", "it flushes as others do");
    one.sql(one.database(), "create table t (n int)");
    assert!(other.try_sql(other.database(), "select * from t").is_err(), "databases are apart");
    let gone = format!("select count(*) from pg_database where datname = '{}'", one.database());
    let is_in_memory = one.sql("postgres", "show data_directory").starts_with("/dev/shm");
    drop(one);
    let left = if is_in_memory { "0" } else { "1" };
    assert_eq!(other.sql("postgres", &gone), left, "on a disk it goes with the server");
}

/// Not a test by itself: the test below runs it in a separate run.
#[test]
#[ignore = "it is a test of another run"]
fn a_test_of_another_run() {
    let server = Postgres::shared();
    println!("\npid {}", server.sql("postgres", "select pg_read_file('postmaster.pid', 0, 20)"));
    // It ends when its input does.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn the_shared_server_ends_with_its_run() {
    // The shell plays the runner.
    let mut run = Command::new("sh");
    run.args(["-c", "\"$0\" --ignored --exact --nocapture postgres::a_test_of_another_run; true"]);
    run.arg(std::env::current_exe().expect("this test")).env("NEXTEST_RUN_ID", "another");
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let server = OthersServer::of(&mut run);
    drop(run.stdin.take());
    assert!(run.wait().expect("it ends").success());
    server.ends();
}
