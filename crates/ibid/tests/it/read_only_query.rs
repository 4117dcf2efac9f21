//! Read-only queries on real stores.

use std::ops::ControlFlow;
use std::path::Path;

use ibid::store::read_only_query::ReadOnlyQueryError;
use ibid::store::sqlite::{SqliteOptions, SqliteStore};

/// Returns the rows of a statement.
fn read(path: &Path, sql: &str) -> Result<Vec<Vec<Option<String>>>, String> {
    let mut rows = Vec::new();
    let mut on_row = |_: &[String], cells| {
        rows.push(cells);
        ControlFlow::Continue(())
    };
    let read = SqliteStore::read_rows(path, SqliteOptions::default(), sql, &mut on_row);
    match read {
        Ok(_) => Ok(rows),
        Err(ReadOnlyQueryError::Refused(why)) => Err(why),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_statement_that_reads_is_run_and_no_other_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    drop(SqliteStore::open(&path, SqliteOptions::default()).unwrap());
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
    let looked = SqliteStore::read_rows(&missing, SqliteOptions::default(), "select 1", &mut |_, _| {
        ControlFlow::Continue(())
    });
    assert!(matches!(looked, Err(ReadOnlyQueryError::Open(_))));
    assert!(!missing.exists());
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;
    use ibid::store::postgres::{PostgresOptions, PostgresStore};
    use ibid_testkit::postgres::Postgres;

    async fn read(url: &str, sql: &str, stop_after: usize) -> Result<Vec<Vec<Option<String>>>, String> {
        let mut rows = Vec::new();
        let mut on_row = |columns: &[String], cells| {
            assert_eq!(columns[0], "a");
            rows.push(cells);
            if rows.len() == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match PostgresStore::read_rows(url, PostgresOptions::default(), sql, &mut on_row).await {
            Ok(_) => Ok(rows),
            Err(ReadOnlyQueryError::Refused(why)) => Err(why),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_statement_that_reads_is_run_and_no_other_on_postgres() {
        let server = Postgres::shared();
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
            "select nextval(pg_get_serial_sequence('ibid_effect_call', 'seq')) as a",
            "select 1/0 as a",
            "",
        ];
        for sql in wrong {
            read(&url, sql, 0).await.expect_err(sql);
        }
    }
}
