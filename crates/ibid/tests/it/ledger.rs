//! Dead letters of a ledger on real stores, and statements that only read.

use std::path::Path;
use std::sync::Arc;

use ibid::core::store::Store;
use ibid::ledger::{Comparison, Finding, LETTER_KIND, LetterError, Line, write_letters};
use ibid::operator::{Act, Operator, OperatorError};
use ibid::outbox::{EffectFilter, EffectState, StoredEffect};
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::store::rows::{Next, RowsError};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid::{Ibid, Settings};

fn because(reason: &str) -> Act {
    Act::new("ann", reason).expect("a name and a reason")
}

/// Their lines with these keys; we have `a`.
fn findings(theirs: &[&str]) -> Vec<Finding> {
    let line = |number, key: &str| Line {
        number,
        key: key.to_owned(),
        values: Vec::new(),
        open: false,
        partial: false,
    };
    let mut comparison = Comparison::new(Vec::new());
    comparison.ours(line(1, "a")).unwrap();
    for (number, key) in (1..).zip(theirs) {
        comparison.theirs(line(number, key), || format!("{{\"key\":\"{key}\"}}")).unwrap();
    }
    comparison.end().findings
}

async fn letters(ibid: &Ibid) -> Vec<StoredEffect> {
    Operator::new(ibid).effects(EffectFilter::default()).await.unwrap().0
}

async fn each_is_written_once_and_is_a_persons(store: Arc<dyn Store>) {
    let found = findings(&["a", "x", "a", ""]);
    assert_eq!(write_letters(&*store, "acme", &found).await.unwrap(), 3);
    assert_eq!(write_letters(&*store, "acme", &found).await.unwrap(), 0);
    // Another provider's keys are other keys, and a third of a kind is not its second.
    assert_eq!(write_letters(&*store, "other", &findings(&["a", "x"])).await.unwrap(), 1);
    assert_eq!(write_letters(&*store, "acme", &findings(&["a", "a", "a"])).await.unwrap(), 1);

    let ibid = Ibid::start(store.clone(), Settings::default()).await.unwrap();
    let all = letters(&ibid).await;
    assert_eq!(all.len(), 5);
    for letter in &all {
        assert_eq!(
            (letter.state, letter.kind.as_str(), letter.due_at),
            (EffectState::Dead, LETTER_KIND, None)
        );
    }
    // The gravest comes first.
    let first: serde_json::Value = serde_json::from_slice(&all[0].payload).unwrap();
    assert_eq!(
        (&first["found"], &first["key"], &first["source"]),
        (&"theirs_twice".into(), &"a".into(), &"acme".into())
    );
    assert_eq!(first["line"]["key"], "a");
    assert!(all[0].last_error.as_deref().unwrap().contains("has 2 for one key"));

    let seq = all[0].seq;
    let refused = Operator::new(&ibid).retry(seq, &because("try")).await.unwrap_err();
    assert!(matches!(refused, OperatorError::NothingToMake), "{refused:?}");
    Operator::new(&ibid).discard(seq, &because("refunded by hand")).await.unwrap();
    let discarded = letters(&ibid).await.into_iter().find(|letter| letter.seq == seq).unwrap();
    assert_eq!(discarded.state, EffectState::Discarded);
    // What a person has dealt with does not come back with the next comparison.
    assert_eq!(write_letters(&*store, "acme", &found).await.unwrap(), 0);
    assert_eq!(letters(&ibid).await.len(), 5);
}

fn sqlite(path: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(path, SqliteOptions::default()).unwrap())
}

#[tokio::test]
async fn each_letter_is_written_once_and_is_a_persons_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    each_is_written_once_and_is_a_persons(sqlite(&folder.path().join("a.db"))).await;
}

#[tokio::test]
async fn many_letters_are_written_in_batches() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder.path().join("a.db"));
    let keys: Vec<String> = (0..257).map(|n| format!("k{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(write_letters(&*store, "acme", &findings(&keys)).await.unwrap(), 257);
}

#[tokio::test]
async fn a_store_without_an_outbox_and_a_source_without_a_name_are_refused() {
    let memory = MemoryStore::new(Clock::system());
    let found = findings(&["x"]);
    assert!(matches!(write_letters(&memory, "acme", &found).await, Err(LetterError::NoSql)));
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder.path().join("a.db"));
    assert!(matches!(write_letters(&*store, "", &found).await, Err(LetterError::Source(_))));
}

/// What a statement gives, row by row.
fn read(path: &Path, sql: &str) -> Result<Vec<Vec<Option<String>>>, String> {
    let mut rows = Vec::new();
    let mut each = |_: &[String], cells| {
        rows.push(cells);
        Next::More
    };
    let read = SqliteStore::read_rows(path, SqliteOptions::default(), sql, &mut each);
    match read {
        Ok(_) => Ok(rows),
        Err(RowsError::Refused(why)) => Err(why),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_statement_that_reads_is_run_and_no_other_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    drop(sqlite(&path));
    let some = |text: &str| Some(text.to_owned());
    let rows = read(&path, "select 1 as a, null, 'x', 12.5, x'0aff';").unwrap();
    assert_eq!(rows, [[some("1"), None, some("x"), some("12.5"), some("\\x0aff")]]);
    let wrong = [
        "delete from ibid_meta",
        "select 1; delete from ibid_meta",
        "create table t (a)",
        "select no_such_column from ibid_meta",
        "begin",
        "pragma query_only = off",
        "insert into ibid_meta values ('a', x'00') returning name",
        "",
        "nonsense",
    ];
    for sql in wrong {
        read(&path, sql).expect_err(sql);
    }
    assert_eq!(read(&path, "select count(*) from ibid_effect").unwrap(), [[some("0")]]);
    let missing = folder.path().join("b.db");
    let looked =
        SqliteStore::read_rows(&missing, SqliteOptions::default(), "select 1", &mut |_, _| Next::More);
    assert!(matches!(looked, Err(RowsError::Open(_))));
    assert!(!missing.exists());
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;
    use ibid::store::postgres::{PostgresOptions, PostgresStore};
    use ibid_testkit::postgres::Postgres;

    async fn read(url: &str, sql: &str, stop_after: usize) -> Result<Vec<Vec<Option<String>>>, String> {
        let mut rows = Vec::new();
        let mut each = |columns: &[String], cells| {
            assert_eq!(columns[0], "a");
            rows.push(cells);
            if rows.len() == stop_after { Next::Stop } else { Next::More }
        };
        match PostgresStore::read_rows(url, PostgresOptions::default(), sql, &mut each).await {
            Ok(_) => Ok(rows),
            Err(RowsError::Refused(why)) => Err(why),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn each_letter_is_written_once_and_is_a_persons_on_postgres() {
        let server = Postgres::start();
        let store = PostgresStore::open(&server.url(), PostgresOptions::default()).await.unwrap();
        each_is_written_once_and_is_a_persons(Arc::new(store)).await;
    }

    #[tokio::test]
    async fn a_statement_that_reads_is_run_and_no_other_on_postgres() {
        let server = Postgres::start();
        let url = server.url();
        drop(PostgresStore::open(&url, PostgresOptions::default()).await.unwrap());
        let some = |text: &str| Some(text.to_owned());
        let rows = read(&url, "select 1 as a, null, 'x', 12.50, '\\x0aff'::bytea -- so", 0).await.unwrap();
        assert_eq!(rows, [[some("1"), None, some("x"), some("12.50"), some("\\x0aff")]]);
        let many = read(&url, "select n as a from generate_series(1, 2500) n", 0).await.unwrap();
        assert_eq!((many.len(), &many[2499]), (2500, &vec![some("2500")]));
        assert_eq!(read(&url, "select n as a from generate_series(1, 2500) n", 7).await.unwrap().len(), 7);
        let wrong = [
            "delete from ibid_meta",
            "select 1 as a; commit; delete from ibid_meta",
            "with w as (delete from ibid_meta returning name) select * from w",
            "select set_config('transaction_read_only', 'off', false) as a",
            "select nextval(pg_get_serial_sequence('ibid_effect', 'seq')) as a",
            "select 1/0 as a",
            "",
        ];
        for sql in wrong {
            read(&url, sql, 0).await.expect_err(sql);
        }
    }
}
