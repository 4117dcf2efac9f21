//! A server that stalls or cuts connections.

use std::sync::atomic::{AtomicBool, Ordering};

use ibid::store::mysql::MysqlOpenError;
use ibid_core::change::{History, HistoryKind};
use ibid_core::sql::{Statement, Type};
use ibid_core::store::Work;
use tokio::task::JoinSet;

use super::*;

/// T1 gives up on a reply and rolls back, and the rollback reads that reply; T2 gets the connection and reads the rollback's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_reply_answers_no_later_statement() {
    let server = Arc::new(MariaDb::start());
    let database = server.create_database();
    let patient = open(&server, &database).await;
    let records = begin_some(&patient, 3, LONG).await;
    let options = options().with(|options| {
        options.reply_wait = Duration::from_millis(300);
        // All that follows is on the connection that stalled, if it is used again.
        options.connections_max = 1;
    });
    // A slow machine may miss the limit anywhere, so everything is tried again.
    let store = loop {
        match MysqlStore::open(&server.url_for(&database), options.clone()).await {
            Ok(store) => break store,
            Err(error) => assert!(matches!(error, MysqlOpenError::Unreachable { .. }), "{error:?}"),
        }
    };
    let has_stalled = Arc::new(AtomicBool::new(false));
    while !has_stalled.load(Ordering::SeqCst) {
        let (server, has_stalled) = (server.clone(), has_stalled.clone());
        let work: Work = Box::new(move |tx| {
            Box::pin(async move {
                server.freeze();
                let answered = tx.execute(&NOTHING, &[]).await;
                server.thaw();
                has_stalled.store(answered.is_err(), Ordering::SeqCst);
                answered
            })
        });
        let error = store.sql().expect("it has one").work(work).await.expect_err("nothing was answered");
        assert!(error.is_transient(), "{error:?}");
    }
    for record in records {
        let stored = loop {
            match store.load(record.id).await {
                Ok(stored) => break stored,
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
        };
        assert_eq!(stored.expect("it is there").record, record);
    }
}

/// Each cut loses replies: of statements that ran, and of some that did not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut_under_load_lose_no_change() {
    let server = MariaDb::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let mut writers = JoinSet::new();
    for _ in 0..8 {
        let store = store.clone();
        writers.spawn(async move {
            for n in 0..40 {
                let mut begin = fresh(&TestRecord::fresh(), LONG);
                if n % 2 == 0 {
                    // By the plain path.
                    begin.history.push(History { what: HistoryKind::Operator, detail: "begun".to_owned() });
                }
                let begin = Arc::new(begin);
                let record = match commit_patiently(&store, &begin).await {
                    Commit::Done(stamp) => begin.apply(stamp, None).expect("it writes a record"),
                    Commit::Conflict(Some(stored)) if begin.is_stored_as(&stored) => stored.record,
                    other => panic!("a fresh name was taken: {other:?}"),
                };
                let finish = Arc::new(finish(&record));
                match commit_patiently(&store, &finish).await {
                    Commit::Done(_) => {}
                    Commit::Conflict(Some(stored)) if finish.is_stored_as(&stored) => {}
                    other => panic!("the lease was lost: {other:?}"),
                }
            }
        });
    }
    let sessions = format!("select id from information_schema.processlist where db = '{database}'");
    let mut cuts = 0;
    while !writers.is_empty() {
        for session in server.sql("", &sessions).lines() {
            // It may have ended by itself.
            cuts += u32::from(server.try_sql("", &format!("kill {session}")).is_ok());
        }
        while let Some(written) = writers.try_join_next() {
            written.expect("a writer ends");
        }
    }
    assert!(cuts > 0, "connections were cut");
    let counts = "select count(*), sum(state = 3) from ibid_record";
    assert_eq!(server.sql(&database, counts), "320|320", "each is stored once, and finished");
    assert_eq!(server.sql(&database, "select count(*) from ibid_event"), "160", "and told once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_always_works_in_read_committed() {
    let server = MariaDb::start_with(&[("transaction_isolation", "SERIALIZABLE")]);
    let database = server.create_database();
    let store = open(&server, &database).await;
    let level = Arc::new(std::sync::Mutex::new(None));
    let shared = level.clone();
    let work: Work = Box::new(move |tx| {
        Box::pin(async move {
            // The server lists a transaction that has read a table.
            tx.query(&READ, &[]).await?;
            let mut rows = tx.query(&LEVEL, &[]).await?;
            *shared.lock().expect("no thread panics with it") =
                rows.pop().map(|mut row| row.text()).transpose()?;
            Ok(())
        })
    });
    store.sql().expect("it has one").work(work).await.expect("it works");
    assert_eq!(level.lock().expect("no thread panics with it").as_deref(), Some("READ COMMITTED"));
}

static NOTHING: Statement = Statement { text: "do 0", columns: &[] };
static READ: Statement = Statement { text: "select count(*) from ibid_meta", columns: &[Type::I64] };
static LEVEL: Statement = Statement {
    text: "select trx_isolation_level from information_schema.innodb_trx where trx_mysql_thread_id = connection_id()",
    columns: &[Type::Text],
};
