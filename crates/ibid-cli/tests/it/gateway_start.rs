//! A gateway that cannot work does not start; it prints the error, its cause and a hint.

use std::net::TcpListener;

use ibid::store::postgres::PostgresStore;
use rusqlite::Connection;

use crate::harness::{On, Setup, on_every_store};
use crate::mount::Tmpfs;

const UPSTREAM: &str = "http://127.0.0.1:9";

#[test]
fn without_a_tenant_it_does_not_start() {
    Setup::before(UPSTREAM).tenant("").expect_refusal().assert_error(
        2,
        "no tenant",
        "two clients",
        "--tenant",
    );
}

#[test]
fn a_tenant_that_is_no_way_to_find_one_is_refused() {
    let refused = Setup::before(UPSTREAM).tenant("cookie").expect_refusal();
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.output.contains("`cookie`") && refused.output.contains("\nhint: "), "{refused:?}");
}

#[test]
fn an_upstream_that_is_no_http_url_is_refused() {
    for url in ["nonsense", "ftp://127.0.0.1", "127.0.0.1:3000"] {
        Setup::before(url).expect_refusal().assert_error(
            2,
            "absolute `http://` or `https://` URL",
            "begin with",
            "http://127.0.0.1:3000",
        );
    }
    Setup::before("http://[::1").expect_refusal().assert_error(
        2,
        "is not a URL",
        "",
        "http://127.0.0.1:3000",
    );
}

#[test]
fn a_taken_port_is_refused_for_clients_and_for_operators() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    for flag in ["--listen", "--admin-listen"] {
        let refused = Setup::before(UPSTREAM).flag(flag).flag(&address).expect_refusal();
        refused.assert_error(3, &format!("`{address}`"), "in use", &format!("choose one with `{flag}`"));
    }
}

#[test]
fn a_database_that_can_not_be_opened_is_refused() {
    let setup = Setup::before(UPSTREAM);
    let folder = setup.folder().join("a folder");
    std::fs::create_dir(&folder).expect("a folder can be made");
    setup.clone().database_at(&folder).expect_refusal().assert_error(
        3,
        "cannot open the store",
        "a folder",
        "folder",
    );
    let nowhere = setup.folder().join("nowhere/ibid.db");
    setup.database_at(&nowhere).expect_refusal().assert_error(
        3,
        "cannot open the store",
        "nowhere",
        "folder exists",
    );
}

#[test]
fn a_database_that_can_not_be_written_is_refused() {
    let disk = Tmpfs::mount("1m");
    let path = disk.path().join("ibid.db");
    let setup = Setup::before(UPSTREAM).database_at(&path);
    setup.start().kill();
    disk.remount("ro");
    setup.expect_refusal().assert_error(3, "cannot open the store", "ibid.db", "write");
}

#[test]
fn a_foreign_database_keeps_its_tables() {
    let setup = Setup::before(UPSTREAM);
    let other = Connection::open(setup.database()).expect("a database can be made");
    other
        .execute_batch(
            "pragma application_id = 7; pragma user_version = 42;
             create table record (x); insert into record values (1)",
        )
        .expect("a table can be made");
    setup.start().kill();
    let theirs =
        "select x, (select * from pragma_application_id), (select * from pragma_user_version) from record";
    let theirs: (i64, i64, i64) = other
        .query_row(theirs, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .expect("their table is there");
    assert_eq!(theirs, (1, 7, 42));
    setup.start().kill();
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_as_it_was() {
    let setup = Setup::before(UPSTREAM);
    let letter = "not a database, but a letter to a friend\n".repeat(100);
    std::fs::write(setup.database(), &letter).expect("a file can be written");
    setup.expect_refusal().assert_error(
        3,
        "cannot open the store",
        "not a SQLite database",
        "a separate file",
    );
    assert_eq!(std::fs::read_to_string(setup.database()).expect("it can be read"), letter);
}

on_every_store!(a_database_of_a_newer_ibid_is_refused and mysql);
async fn a_database_of_a_newer_ibid_is_refused(on: On) {
    let setup = Setup::before(UPSTREAM).on(on);
    setup.start().kill();
    let number = PostgresStore::newest_schema() + 1;
    let (upgrade, cause) = match setup.is_on_file() {
        true => (
            "update ibid_meta set value = cast('4711' as blob) where name in ('schema', 'schema_needs')"
                .to_owned(),
            "schema 4711".to_owned(),
        ),
        false => (
            format!("insert into ibid_schema_step values ({number}, '', {number})"),
            format!("is number {number}"),
        ),
    };
    setup.sql(&upgrade);
    setup.expect_refusal().assert_error(3, "cannot open the store", &cause, "newer");
}

#[test]
fn an_unknown_key_of_the_file_is_refused_with_its_line() {
    let typo = Setup::before(UPSTREAM).config("# rules\n[defaults]\nretenton = \"1h\"\n").expect_refusal();
    typo.assert_error(2, "ibid.toml:3: `retenton` is not a key", "ignored", "did you mean `retention`?");
    let unheard = Setup::before(UPSTREAM).config("[unheard]\nof = 1\n").expect_refusal();
    unheard.assert_error(2, "ibid.toml:1: `unheard` is not a key", "ignored", "lists every key");
}
