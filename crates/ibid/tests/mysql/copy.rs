//! Copies into and out of a server: what it can't take or a user may not do is found before anything is closed.

use ibid::copy::{CopyEnd, CopyError, copy};
use ibid::identity::IdentityPhase;
use ibid::identity::change::{ChangeError, load_setting, retire};
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::{Ibid, Settings};
use ibid_core::change::HistoryKind;
use ibid_core::evidence::{EventName, Evidence, EvidenceSubject};
use ibid_core::machine::Observation;
use ibid_core::record::State;
use ibid_core::scope::{Identity, Operation};
use ibid_testkit::contract::{answering, draft, insert, load, put, response, telling};

use super::*;

/// Starts a process on a store, so that a copy waits 200 ms for it.
async fn start_on(store: Arc<dyn Store>, display_url: &str) -> CopyEnd {
    let settings =
        Settings::default().with(|settings| settings.identity_valid_for = Duration::from_millis(100));
    Ibid::start(store.clone(), settings).await.expect("it starts");
    CopyEnd::new(store, display_url)
}

fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Clock::system()))
}

async fn phase(end: &CopyEnd) -> IdentityPhase {
    let setting = load_setting(&*end.store).await.expect("a read").expect("it was used");
    setting.check_open().expect("no copy keeps it closed");
    setting.phase
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_copy_is_split_into_packets_that_the_server_takes() {
    let server = MariaDb::start_with(&[("max_allowed_packet", "1M")]);
    let source = start_on(memory(), "memory").await;
    let mut names = Vec::new();
    for n in 0..100 {
        let mut name = TestRecord::of("shop", &format!("key-{n}"));
        let operation =
            Operation { method: "POST".into(), path: format!("/{}", "p".repeat(20_000)).as_str().into() };
        name.identity = Arc::new(Identity { operation, ..Identity::clone(&name.identity) });
        put(&*source.store, &answering(insert(&name, draft(&name, State::Completed)), b"paid")).await;
        names.push(name);
    }
    let store = open(&server, &server.create_database()).await;
    let target = CopyEnd::new(store.clone(), "mysql");
    copy(&source, &target, |_| {}).await.expect("it is copied");
    for name in &names {
        assert_eq!(load(&*store, name.id).await.expect("it is copied").body(), Some(&b"paid"[..]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_row_larger_than_a_packet_is_found_before_the_close() {
    let server = MariaDb::start_with(&[("max_allowed_packet", "1M")]);
    let source = start_on(memory(), "memory").await;
    let name = TestRecord::fresh();
    let mut change = answering(insert(&name, draft(&name, State::Completed)), b"");
    change.response = Some(response(vec![0xa5; 600 << 10]));
    put(&*source.store, &change).await;
    let store = open(&server, &server.create_database()).await;
    let target = CopyEnd::new(store, "mysql");
    let refused = copy(&source, &target, |_| {}).await;
    assert!(matches!(&refused, Err(CopyError::Store(error)) if !error.is_transient()), "{refused:?}");
    assert_eq!(phase(&source).await, IdentityPhase::Active, "it was not closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_value_that_fits_no_column_is_found_before_the_close() {
    let server = MariaDb::shared();
    for (misfit, says) in [
        (Misfit::Detail("x".repeat(65_536)), "`detail` has 65536 bytes"),
        (Misfit::Method("M".repeat(256)), "`method` has 256 bytes"),
        (Misfit::Event("e".repeat(1_025)), "`event` has 1025 bytes"),
    ] {
        let source = start_on(memory(), "memory").await;
        misfit.put(&source).await;
        let target = CopyEnd::new(open(&server, &server.create_database()).await, "mysql");
        let refused = copy(&source, &target, |_| {}).await;
        let Err(CopyError::Store(error)) = refused else { panic!("{says}: {refused:?}") };
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(!error.is_transient() && cause.contains(says), "{says}: {cause}");
        assert_eq!(phase(&source).await, IdentityPhase::Active, "it was not closed");
    }
    // A byte less fits.
    let source = start_on(memory(), "memory").await;
    for fits in [
        Misfit::Detail("x".repeat(65_535)),
        Misfit::Method("M".repeat(255)),
        Misfit::Event("e".repeat(1_024)),
        Misfit::Detail("NUL: \0".to_owned()),
    ] {
        fits.put(&source).await;
    }
    let target = CopyEnd::new(open(&server, &server.create_database()).await, "mysql");
    copy(&source, &target, |_| {}).await.expect("it is copied");
}

/// A value that some columns can't hold.
enum Misfit {
    Detail(String),
    Method(String),
    Event(String),
}

impl Misfit {
    async fn put(&self, source: &CopyEnd) {
        let mut name = TestRecord::fresh();
        match self {
            Misfit::Detail(detail) => {
                let change = insert(&name, draft(&name, State::Completed));
                put(&*source.store, &telling(change, HistoryKind::Operator, detail)).await;
            }
            Misfit::Method(method) => {
                let operation = Operation { method: method.as_str().into(), path: "/".into() };
                name.identity = Arc::new(Identity { operation, ..Identity::clone(&name.identity) });
                put(&*source.store, &insert(&name, draft(&name, State::Completed))).await;
            }
            Misfit::Event(event) => {
                let name_of_event = EventName { source: "psp".into(), event: event.clone() };
                let (about, what) = (EvidenceSubject::Record(name.id), Observation::NotExecuted);
                let one = Evidence { name: name_of_event, about, owner: None, what, age: Duration::ZERO };
                let evidence = source.store.evidence().expect("it stores evidence");
                evidence.insert_evidence(one, LONG).await.expect("it is stored");
            }
        }
    }
}

/// The user of the page about MySQL, who has all privileges on the database and none on the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_user_who_cannot_see_transactions_closes_nothing() {
    let server = MariaDb::start();
    let database = server.create_database();
    server.sql(
        "",
        &format!(
            "create user app@'127.0.0.1' identified by 'pw'; grant all on {database}.* to app@'127.0.0.1'"
        ),
    );
    let url = format!("mysql://app:pw@127.0.0.1:{}/{database}", server.port());
    let store = MysqlStore::open(&url, options()).await.expect("it opens");
    let source = start_on(Arc::new(store), "mysql").await;
    let target = CopyEnd::new(memory(), "memory");
    let names_privilege = |error: &dyn std::error::Error| format!("{error:?}").contains("PROCESS");
    match copy(&source, &target, |_| {}).await {
        Err(CopyError::Store(error)) => assert!(names_privilege(&error), "{error:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(phase(&source).await, IdentityPhase::Active, "it was not closed");
    match retire(&*source.store, false, |_| {}).await {
        Err(ChangeError::Store(error)) => assert!(names_privilege(&error), "{error:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(phase(&source).await, IdentityPhase::Active, "it was not retired");
    server.sql("", "grant process on *.* to app@'127.0.0.1'");
    // A connection has the privileges of the instant at which it was made.
    let store = MysqlStore::open(&url, options()).await.expect("it opens");
    let source = CopyEnd::new(Arc::new(store), source.display_url);
    copy(&source, &target, |_| {}).await.expect("it is copied");
}
