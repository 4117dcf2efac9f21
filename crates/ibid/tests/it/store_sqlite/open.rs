//! Opening a file: what is made, accepted and refused.

use std::sync::Barrier;

use ibid::store::sqlite::SqliteOpenError;

use super::*;

#[test]
fn concurrent_creators_of_one_file_all_open_it() {
    let file = File::fresh();
    let line = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                line.wait();
                sqlite_on(&file, |_| {});
            });
        }
    });
}

#[test]
fn a_file_that_can_not_be_a_store_is_refused_and_left_as_it_is() {
    type Case = (&'static str, fn(&Path), fn(&SqliteOpenError) -> bool);
    let cases: [Case; 6] = [
        (
            "garbage",
            |path| std::fs::write(path, [b'x'; 8192]).expect("it is written"),
            |e| matches!(e, SqliteOpenError::NotADatabase { .. }),
        ),
        (
            "short garbage",
            |path| std::fs::write(path, b"key,state\n").expect("it is written"),
            |e| matches!(e, SqliteOpenError::NotADatabase { .. }),
        ),
        (
            "from the future",
            |path| {
                let schema = "create table ibid_meta (name text primary key, value blob not null) strict, without rowid;
                              insert into ibid_meta values ('schema', cast('99' as blob))";
                sql(path, schema);
            },
            |e| matches!(e, SqliteOpenError::FromTheFuture { found: 99, .. }),
        ),
        (
            "a file of the first builds",
            |path| sql(path, "pragma application_id = 0x69626964; create table record (id blob)"),
            |e| matches!(e, SqliteOpenError::EarlierBuild { .. }),
        ),
        (
            "tables of an earlier build",
            |path| {
                let schema = "create table ibid_meta (name text primary key, value blob not null) strict, without rowid;
                              insert into ibid_meta values ('schema', cast('5' as blob));
                              create table ibid_record (row integer primary key, id blob)";
                sql(path, schema);
            },
            |e| matches!(e, SqliteOpenError::EarlierBuild { .. }) && e.to_string().contains("new file"),
        ),
        (
            "ours without a schema",
            |path| sql(path, "create table ibid_meta (name text primary key, value blob)"),
            |e| matches!(e, SqliteOpenError::Failed { source, .. } if source.to_string().contains("names no schema")),
        ),
    ];
    for (what, make, expected) in cases {
        let file = File::fresh();
        make(&file.path());
        let before = std::fs::read(file.path()).expect("it is there");
        let error = SqliteStore::open(&file.path(), SqliteOptions::default()).expect_err(what);
        assert!(expected(&error), "{what}: {error:?}");
        assert!(error.to_string().contains("ibid.db"), "{what}: the message names the file: {error}");
        assert_eq!(std::fs::read(file.path()).expect("it is there"), before, "{what} was changed");
        assert_eq!(files(&file), ["ibid.db"], "{what} got company");
    }
}

#[tokio::test]
async fn a_newer_schema_that_only_expanded_is_accepted() {
    let file = File::fresh();
    drop(sqlite_on(&file, |_| {}));
    let later = |needs: u32| {
        let newer = format!(
            "insert into ibid_meta (name, value) values ('schema', cast('7' as blob)), ('schema_needs', cast('{needs}' as blob))
             on conflict (name) do update set value = excluded.value"
        );
        sql(&file.path(), &newer);
    };
    later(1);
    sql(&file.path(), "alter table ibid_record add column later text");
    let subject = sqlite_on(&file, |_| {});
    let names: Vec<TestRecord> = (0..3).map(|_| TestRecord::fresh()).collect();
    for name in &names {
        put(&*subject.store, &insert(name, draft(name, State::Unknown))).await;
    }
    // A state that this program does not know concerns one record.
    let unknown = format!("update ibid_record set state = 9 where id = x'{}'", names[0].id);
    sql(&file.path(), &unknown);
    let error = subject.store.load(names[0].id).await.expect_err("it is not taken for absent");
    assert!(!error.is_transient());
    assert_eq!(list_len(&subject.store, 10).await, 2);
    let counts = subject.store.browse().expect("it can be browsed").count().await.expect("counts");
    assert_eq!(counts.by_state[4].value(), Some(2), "unknown ones: {counts:?}");
    drop(subject);
    later(2);
    let error =
        SqliteStore::open(&file.path(), SqliteOptions::default()).expect_err("a later step contracts");
    assert!(matches!(error, SqliteOpenError::FromTheFuture { found: 7, known: 1, .. }), "{error:?}");
}

#[test]
fn a_missing_file_is_made_only_when_asked() {
    let file = File::fresh();
    let options = || SqliteOptions::default().with(|options| options.create = false);
    let error = SqliteStore::open(&file.path(), options()).expect_err("there is no file");
    assert!(matches!(error, SqliteOpenError::Missing { .. }), "{error:?}");
    assert_eq!(files(&file), [""; 0], "nothing was made");
    std::fs::write(file.path(), b"").expect("it is written");
    let error = SqliteStore::open(&file.path(), options()).expect_err("an empty file is no store");
    assert!(matches!(error, SqliteOpenError::NoTables { .. }), "{error:?}");
    let error =
        SqliteStore::open(file.0.path(), SqliteOptions::default()).expect_err("a directory is no file");
    assert!(matches!(error, SqliteOpenError::Failed { .. }), "{error:?}");
    let nowhere = file.0.path().join("no/such/directory/ibid.db");
    let error = SqliteStore::open(&nowhere, SqliteOptions::default()).expect_err("there is no directory");
    assert!(matches!(error, SqliteOpenError::Failed { .. }), "{error:?}");
    SqliteStore::open(&file.path(), SqliteOptions::default()).expect("an empty file may become a store");
}

#[cfg(unix)]
#[tokio::test]
async fn only_its_owner_can_read_a_new_database() {
    use std::os::unix::fs::PermissionsExt;
    let sqlite = sqlite();
    let name = TestRecord::fresh();
    put(&*sqlite.store, &insert(&name, draft(&name, State::InProgress))).await;
    for tail in ["", "-wal"] {
        let path = PathBuf::from(format!("{}{tail}", sqlite.file.path().display()));
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}", path.display());
    }
}
