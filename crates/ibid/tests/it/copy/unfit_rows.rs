//! Rows that a target's columns can't hold are found while the source is open.

use std::sync::Arc;
use std::time::Duration;

use ibid::copy::{CopyEnd, CopyError, copy};
use ibid::identity::change::load_setting;
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid::{Ibid, Settings};
use ibid_core::change::HistoryKind;
use ibid_core::evidence::{EventName, Evidence, EvidenceStore, EvidenceSubject};
use ibid_core::machine::Observation;
use ibid_core::record::State;
use ibid_testkit::contract::{LONG, TestRecord, draft, insert, put, telling};
use ibid_testkit::postgres::Postgres;

/// PostgreSQL refuses the character, and the JSON functions of SQLite end a text at it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_with_a_nul_is_found_before_the_close() {
    let (server, folder) = (Postgres::shared(), tempfile::tempdir().expect("a folder"));
    for (store, column) in [(with_line("a \0 b").await, "detail"), (with_event("a \0 b").await, "event")] {
        let says = format!("`{column}` has a NUL character");
        assert_refused(&store, &postgres(&server).await, &says).await;
        let other = match column {
            "detail" => with_line("a \0 b").await,
            _ => with_event("a \0 b").await,
        };
        assert_refused(&other, &sqlite(&folder, column), &says).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_no_index_holds_is_found_before_the_close() {
    let server = Postgres::shared();
    let too_long = with_event(&random_letters(2_700)).await;
    assert_refused(&too_long, &postgres(&server).await, "`event` has 2703 bytes").await;
    let fits = with_event(&random_letters(2_677)).await;
    copy(&start_on(&fits).await, &postgres(&server).await, |_| {}).await.expect("it is copied");
}

async fn postgres(server: &Postgres) -> CopyEnd {
    let url = server.url_for(&server.create_database());
    let store = PostgresStore::open(&url, PostgresOptions::default()).await.expect("it opens");
    CopyEnd::new(Arc::new(store), "postgres")
}

fn sqlite(folder: &tempfile::TempDir, name: &str) -> CopyEnd {
    let store = SqliteStore::open(&folder.path().join(name), SqliteOptions::default()).expect("it opens");
    CopyEnd::new(Arc::new(store), "sqlite")
}

async fn with_line(detail: &str) -> Arc<MemoryStore> {
    let (store, name) = (Arc::new(MemoryStore::new(Clock::system())), TestRecord::fresh());
    put(&*store, &telling(insert(&name, draft(&name, State::Completed)), HistoryKind::Operator, detail))
        .await;
    store
}

async fn with_event(event: &str) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new(Clock::system()));
    let name = EventName { source: "psp".into(), event: event.to_owned() };
    let (about, what) = (EvidenceSubject::Record(TestRecord::fresh().id), Observation::NotExecuted);
    let one = Evidence { name, about, owner: None, what, age: Duration::ZERO };
    store.insert_evidence(one, LONG).await.expect("it is stored");
    store
}

/// Letters that can't be compressed to less than their index entry needs.
fn random_letters(count: usize) -> String {
    let mut state = 1_u64;
    let letter = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'!' + (state >> 58) as u8)
    };
    (0..count).map(letter).collect()
}

/// Starts a process on the store, so that there is something to copy, and that a copy waits 200 ms for.
async fn start_on(store: &Arc<MemoryStore>) -> CopyEnd {
    let settings =
        Settings::default().with(|settings| settings.identity_valid_for = Duration::from_millis(100));
    Ibid::start(store.clone(), settings).await.expect("it starts");
    CopyEnd::new(store.clone(), "memory")
}

async fn assert_refused(store: &Arc<MemoryStore>, target: &CopyEnd, says: &str) {
    let source = start_on(store).await;
    let refused = copy(&source, target, |_| {}).await;
    let Err(CopyError::Store(error)) = refused else { panic!("{says}: {refused:?}") };
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(!error.is_transient() && cause.contains(says), "`{says}` in {cause}");
    let setting = load_setting(&*source.store).await.expect("a read").expect("it was used");
    setting.check_open().expect("it was not closed");
}
