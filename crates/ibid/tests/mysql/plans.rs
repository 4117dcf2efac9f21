//! No verb reads more rows than it needs: the server counts the rows that it reads of each table.

use ibid_core::change::{Draft, History, HistoryKind};
use ibid_core::evidence::{EventName, Evidence, EvidenceSubject};
use ibid_core::machine::Observation;
use ibid_core::reap::ReapTarget;
use ibid_core::record::State;
use ibid_core::store::RecordFilter;
use ibid_testkit::contract::{commit, draft, insert, load};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_verb_reads_a_table_as_a_whole() {
    let server = MariaDb::start_with(&[("userstat", "on")]);
    let database = server.create_database();
    let store = open(&server, &database).await;
    let portable = open_with(&server, &database, |options| options.portable_statements = true).await;
    begin_some(&store, 1, LONG).await;
    server.sql(&database, &fill());
    // The server's statistics are those of small tables.
    let read = || rows_read(&server, &database);
    let within = |verb: &str, before: u64| assert_few(verb, read() - before);
    for store in [&store, &portable] {
        let before = read();
        let records = begin_some(store, 20, LONG).await;
        within("a begin", before);
        let before = read();
        commit_all(&**store, records[..10].iter().map(|record| finish(record)).collect()).await;
        within("a finish", before);
        let before = read();
        store
            .renew(records.iter().map(|record| (record.id, record.version)).collect())
            .await
            .expect("an answer");
        within("a renewal", before);
        let before = read();
        load(&**store, records[0].id).await.expect("it is there");
        within("a load", before);
        let mut change = finish(&records[10]);
        change.history.push(History { what: HistoryKind::Operator, detail: "told".to_owned() });
        let before = read();
        commit(&**store, &change).await;
        within("a plain commit", before);
        let name = EventName { source: "psp".into(), event: records[11].id.to_string() };
        let (about, what) = (EvidenceSubject::Record(records[11].id), Observation::NotExecuted);
        let one = Evidence { name: name.clone(), about, owner: None, what, age: Duration::ZERO };
        store.evidence().expect("it stores evidence").insert_evidence(one, LONG).await.expect("it is stored");
        let before = read();
        commit(&**store, &Change { uses: Some(name), ..finish(&records[11]) }).await;
        within("a commit that uses evidence", before);
    }
    let before = read();
    let page = store.due(State::Unknown, None, 10).await.expect("due records");
    assert_eq!(page.items.len(), 10);
    store.due(State::Unknown, page.next, 10).await.expect("the next page");
    within("a look for due records", before);
    let before = read();
    let gone = |name: &TestRecord| {
        let over = Some(Duration::ZERO);
        insert(name, Draft { expires_in: over, purge_in: over, ..draft(name, State::Completed) })
    };
    commit(&*store, &gone(&TestRecord::fresh())).await;
    store.reap(ReapTarget::Records, None, 10).await.expect("a step");
    within("a step of the reaper", before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_list_by_state_reads_a_table_as_a_whole() {
    let server = MariaDb::start_with(&[("userstat", "on")]);
    let database = server.create_database();
    let store = open(&server, &database).await;
    begin_some(&store, 1, LONG).await;
    server.sql(&database, &fill());
    let read = || rows_read(&server, &database);
    let within = |verb: &str, before: u64| assert_few(verb, read() - before);
    // By the order of due records: first those that are never due, then the others, from any position on.
    let browse = store.browse().expect("it can be browsed");
    let (mut after, mut pages) = (None, 0);
    while pages < 3 {
        let filter = RecordFilter::default().with(|filter| {
            (filter.state, filter.limit, filter.after) = (Some(State::Unknown), 5, after.take());
        });
        let before = read();
        let page = browse.list(filter).await.expect("a page");
        assert_eq!(page.items.len(), 5);
        within("a list", before);
        (after, pages) = (page.next, pages + 1);
    }
    let filter = RecordFilter::default().with(|filter| {
        let behind = [&LATE.to_be_bytes()[..], &[0; 16]].concat();
        (filter.state, filter.limit) = (Some(State::Unknown), 5);
        filter.after = Some(ibid_core::store::Cursor(behind.into()));
    });
    let before = read();
    assert_eq!(browse.list(filter).await.expect("a page").items.len(), 5);
    within("a list from its middle", before);
}

/// Returns how many rows the server has read of the tables of a database.
fn rows_read(server: &MariaDb, database: &str) -> u64 {
    let rows = format!(
        "select coalesce(sum(rows_read), 0) from information_schema.table_statistics where table_schema = '{database}'"
    );
    server.sql("", &rows).parse().expect("a number")
}

fn assert_few(verb: &str, rows: u64) {
    assert!(rows <= FEW, "{verb} read {rows} rows");
}

/// Returns statements that insert many records of every kind, under the policy that is stored.
fn fill() -> String {
    let columns = "id, birth, created_at, written_at, policy, nonce, count, state, flags, due_at, expires_at, purge_at, reap_at, \
                   tenant, method, path, `key`";
    let rows = |state: u8, due: &str, reap: &str| {
        format!(
            "insert into ibid_record ({columns}) select unhex(md5(concat({state}, ' ', seq))), seq, seq, seq, \
             (select digest from ibid_policy), seq, 1, {state}, 0, {due}, {reap}, {reap}, {reap}, 't', 'POST', '/', concat({state}, seq) \
             from seq_1_to_{MANY};"
        )
    };
    let later = "9000000000000000 + seq";
    let evidence = format!(
        "insert into ibid_evidence (source, event, record, as_of, purge_at, open, nonce, found) \
         select 'psp', seq, unhex(md5(seq)), seq, {later}, 1, seq, '' from seq_1_to_{MANY};"
    );
    [
        evidence,
        rows(2, later, "null"),
        rows(3, "null", later),
        rows(4, "null", later),
        rows(5, "if(seq <= 20, null, seq * 1000)", "null"),
    ]
    .concat()
}

const MANY: u32 = 5000;

/// An instant that half of the unknown records are due behind.
const LATE: i64 = 2_500_000;

/// Rows that a verb with twenty records may read, some of them several times.
const FEW: u64 = 200;
