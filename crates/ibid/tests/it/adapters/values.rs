//! Bound values of every type are read back unchanged.

use bytes::Bytes;
use ibid::transaction::{Database, SqlFault};
use ibid_core::sql::{Param, SqlRow, Type, Value};

use super::{Adapter, PATIENT, change_schema, execute, fault_of, number, query, with_table};
use crate::adapters::databases::TestDatabase;

const COLUMNS: &[Type] = &[Type::Bool, Type::I64, Type::Text, Type::Bytes];

/// As large as a response may be by default.
const LARGE: usize = 1 << 20;

pub(super) async fn what_is_bound_comes_back<A: Adapter>(test_db: TestDatabase) {
    let pool = A::open(&test_db, 1, PATIENT).await;
    let table = "create table kept (id int8 primary key, flag boolean, number int8, word text, data bytea)";
    change_schema(&pool, table).await;
    let mut tx = pool.begin().await.unwrap();
    let large: Vec<u8> = (0..LARGE).map(|at| (at % 251) as u8).collect();
    let rows = rows(&large);
    for (id, row) in rows.iter().enumerate() {
        let mut params = vec![Param::I64(id as i64)];
        params.extend(row);
        let insert = "insert into kept (id, flag, number, word, data) values ($1, $2, $3, $4, $5)";
        execute(&mut tx, insert, &params).await.unwrap();
    }
    let select = "select flag, number, word, data from kept order by id";
    let selected = query(&mut tx, select, COLUMNS, &[]).await.unwrap();
    assert_eq!(selected.len(), rows.len());
    for (row, bound) in selected.into_iter().zip(&rows) {
        assert_is(row, bound);
    }
}

/// PostgreSQL gets the type of each parameter, so that a null has one too.
pub(super) async fn a_bound_value_needs_no_column_to_have_its_type<A: Adapter>(test_db: TestDatabase) {
    let pool = A::open(&test_db, 1, PATIENT).await;
    let mut tx = pool.begin().await.unwrap();
    for row in rows(b"\0\xff") {
        let mut rows = query(&mut tx, "select $1, $2, $3, $4", COLUMNS, &row).await.unwrap();
        assert_is(rows.remove(0), &row);
    }
}

pub(super) async fn rows_are_written_and_returned<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 1).await;
    let mut tx = pool.begin().await.unwrap();
    let insert = "insert into thing (id, n) values (3, 0), (4, 0), (5, 0)";
    execute(&mut tx, insert, &[]).await.unwrap();
    let update = "update thing set n = $1 where id > $2";
    execute(&mut tx, update, &[Param::I64(7), Param::I64(3)]).await.unwrap();
    execute(&mut tx, "delete from thing where n = $1", &[Param::I64(8)]).await.unwrap();
    assert_eq!(number(&mut tx, "select count(*) from thing").await, 5);
    assert_eq!(number(&mut tx, "select count(*) from thing where n = 7").await, 2);
    assert!(query(&mut tx, "select id from thing where n = 8", &[Type::I64], &[]).await.unwrap().is_empty());
    let given =
        query(&mut tx, "delete from thing where n = 7 returning id", &[Type::I64], &[]).await.unwrap();
    assert_eq!(given.len(), 2);
}

pub(super) async fn a_row_that_is_not_what_was_promised_is_wrong<A: Adapter>(test_db: TestDatabase) {
    let pool = A::open(&test_db, 1, PATIENT).await;
    let mut tx = pool.begin().await.unwrap();
    let text = query(&mut tx, "select $1", &[Type::I64], &[Param::Text("seven")]).await;
    assert_eq!(fault_of(text), Some(SqlFault::Wrong));
    let mut tx = pool_again(tx, &pool).await;
    let short = query(&mut tx, "select $1", &[Type::I64, Type::I64], &[Param::I64(7)]).await;
    let short = short.and_then(|mut rows| rows[0].i64().and_then(|_| rows[0].i64()));
    assert_eq!(fault_of(short), Some(SqlFault::Wrong));
}

async fn pool_again<D: Database>(tx: D::Tx, pool: &D) -> D::Tx {
    drop(tx);
    pool.begin().await.unwrap()
}

fn rows(large: &[u8]) -> Vec<[Param<'_>; 4]> {
    vec![
        [Param::Bool(true), Param::I64(i64::MIN), Param::Text(""), Param::Bytes(b"")],
        [Param::Bool(false), Param::I64(i64::MAX), Param::Text("Grüße, 世界 🦀"), Param::Bytes(large)],
        [Param::Bool(true), Param::I64(0), Param::Text("'; \\ \n \" $1"), Param::Bytes(b"\0\x01\xff")],
        [Param::Bool(true), Param::I64(-1), Param::Text("7"), Param::Bytes(b"7")],
        [Param::Null(Type::Bool), Param::Null(Type::I64), Param::Null(Type::Text), Param::Null(Type::Bytes)],
    ]
}

fn assert_is(mut row: SqlRow, bound: &[Param<'_>]) {
    for param in bound {
        let expected = match *param {
            Param::Null(_) => Value::Null,
            Param::Bool(value) => Value::Bool(value),
            Param::I64(value) => Value::I64(value),
            Param::Text(value) => Value::Text(value.to_owned()),
            Param::Bytes(value) => Value::Bytes(Bytes::copy_from_slice(value)),
        };
        // Not `assert_eq!`: a difference in the large one would print a million numbers.
        assert!(row.value().unwrap() == expected, "{:?} did not come back", param.kind());
    }
    assert!(row.value().is_err(), "no more columns than asked for");
}
