//! Stores and processes that write to one file at once.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_stores_on_one_file_never_both_win() {
    let file = File::fresh();
    let stores = [sqlite_on(&file, |_| {}).store, sqlite_on(&file, |_| {}).store];
    let names: Arc<Vec<TestRecord>> = Arc::new((0..100).map(|_| TestRecord::fresh()).collect());
    let runs = stores.clone().map(|store| tokio::spawn(won(store, names.clone())));
    let mut total = 0;
    for run in runs {
        total += run.await.expect("a racer ends").len();
    }
    assert_eq!(total, names.len(), "each name has one winner");
    for name in names.iter() {
        let [left, right] = &stores;
        let (left, right) = (load(&**left, name.id).await, load(&**right, name.id).await);
        assert_eq!(left.map(|stored| stored.record), right.map(|stored| stored.record), "both see the same");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_on_one_file_never_both_win() {
    let file = File::fresh();
    let ours = sqlite_on(&file, |_| {}).store;
    let mut child = Command::new(std::env::current_exe().expect("this test's binary"))
        .args([
            "--exact",
            "store_sqlite::rival_writers::the_other_process",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(OTHER_PROCESS, file.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a second process starts");
    let mut lines = BufReader::new(child.stdout.take().expect("its output is ours"));
    let mut line = String::new();
    while !line.contains("ready") {
        line.clear();
        assert_ne!(
            lines.read_line(&mut line).expect("its output is read"),
            0,
            "it ended before it was ready"
        );
    }
    let ours = won(ours, Arc::new(shared_names())).await.len();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).expect("its output is read");
    assert!(child.wait().expect("it ends").success(), "the other process failed: {rest}");
    let theirs = rest.split("won ").nth(1).and_then(|text| text.split_whitespace().next());
    let theirs: usize = theirs.and_then(|count| count.parse().ok()).expect("it says how many it won");
    assert_eq!(ours + theirs, shared_names().len(), "each name has one winner: ours {ours}, theirs {theirs}");
}

/// Not a test by itself: the test above runs it in a second process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_process() {
    let Some(path) = std::env::var_os(OTHER_PROCESS) else { return };
    let options = SqliteOptions::default().with(|options| {
        options.busy_timeout = Duration::from_secs(30);
        options.create = false;
    });
    let store = Arc::new(SqliteStore::open(Path::new(&path), options).expect("the store opens"));
    println!("ready");
    println!("won {} ", won(store, Arc::new(shared_names())).await.len());
}

/// Returns the names that this store won, some in single commits and some in batches.
async fn won(store: Arc<SqliteStore>, names: Arc<Vec<TestRecord>>) -> Vec<TestRecord> {
    let mut won = Vec::new();
    for few in names.chunks(3) {
        let begin = |name: &TestRecord| answering(insert(name, draft(name, State::InProgress)), b"mine");
        let fates = commit_all(&*store, few.iter().map(begin).collect()).await;
        won.extend(few.iter().filter(|name| matches!(fates[&name.id], Commit::Done(_))).cloned());
    }
    won
}

fn shared_names() -> Vec<TestRecord> {
    (0..300).map(|n| TestRecord::of("both", &format!("key-{n}"))).collect()
}

const OTHER_PROCESS: &str = "IBID_TEST_OTHER_PROCESS";
