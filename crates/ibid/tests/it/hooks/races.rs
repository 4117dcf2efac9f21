//! A webhook, a poll and an operator settle the same record at the same moment, on every store: one wins, and the others
//! are told.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::future::join_all;
use ibid::engine::{Heard, Hearing};
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid::{Ibid, Settings};
use ibid_core::act::Act;
use ibid_core::change::{Change, Commit, Happened};
use ibid_core::evidence::EventName;
use ibid_core::machine::{Answer, Decision, Event, Finder, Found, Verdict, decide};
use ibid_core::record::{Note, State};
use ibid_core::response::Response;
use ibid_core::scope::RecordId;
use ibid_core::store::Store;
use ibid_testkit::contract::{Name, draft, insert, load, nonce, put};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_all_who_settle_a_record_at_once_one_wins_on_memory() {
    one_wins(Arc::new(MemoryStore::new(Clock::system()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_all_who_settle_a_record_at_once_one_wins_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(&folder.path().join("ibid.db"), SqliteOptions::default());
    one_wins(Arc::new(store.expect("it opens"))).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_all_who_settle_a_record_at_once_one_wins_on_postgres() {
    use ibid::store::postgres::{PostgresOptions, PostgresStore};
    let server = ibid_testkit::postgres::Postgres::start();
    let store = PostgresStore::open(&server.url(), PostgresOptions::default()).await.expect("it opens");
    one_wins(Arc::new(store)).await;
}

/// Who settled a record, by the status that it was settled with.
const BY_WEBHOOK: u16 = 201;
const BY_POLL: u16 = 202;
const BY_OPERATOR: u16 = 203;

async fn one_wins(store: Arc<dyn Store>) {
    // Two nodes hear of it, one of them twice; the poll and the operator are processes of their own.
    let nodes = [
        Ibid::start(store.clone(), Settings::default()).await.expect("it starts"),
        Ibid::start(store.clone(), Settings::default()).await.expect("it starts"),
    ];
    for round in 0..20 {
        let name = Name::fresh();
        put(&*store, &insert(&name, draft(&name, State::Unknown))).await;
        let hears = [(&nodes[0], "a"), (&nodes[0], "b"), (&nodes[1], "a")].map(|(node, event)| {
            let node = node.clone();
            let heard = Heard {
                name: EventName { source: "psp".into(), event: format!("{event} of {}", name.id) },
                record: name.id,
                what: executed(BY_WEBHOOK),
                age: Duration::ZERO,
            };
            tokio::spawn(async move { node.hear(heard).await.expect("heard") == Hearing::Settled })
        });
        let others =
            [(Finder::Reconciler, BY_POLL), (Finder::Operator(&ACT), BY_OPERATOR)].map(|(by, status)| {
                let (store, id) = (store.clone(), name.id);
                tokio::spawn(async move { settles(&*store, id, by, executed(status)).await })
            });
        let won: Vec<bool> = join_all(hears.into_iter().chain(others))
            .await
            .into_iter()
            .map(|won| won.expect("no panic"))
            .collect();
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "round {round}: {won:?}");
        let by = [BY_WEBHOOK, BY_WEBHOOK, BY_WEBHOOK, BY_POLL, BY_OPERATOR];
        let winner = won.iter().position(|won| *won).expect("one of them");
        let stored = load(&*store, name.id).await.expect("it stands");
        assert_eq!(stored.record.state, State::Completed);
        assert_eq!(stored.record.note, Note { status: Some(by[winner]), ..Note::default() });
        let lines = store.history(name.id).await.expect("a history");
        let settling = [Happened::Settled, Happened::Operator];
        assert_eq!(lines.iter().filter(|(_, line)| settling.contains(&line.what)).count(), 1);
    }
}

fn executed(status: u16) -> Found {
    let kept = Response::plain(status, "text/plain", status.to_string()).to_bytes();
    Found::Executed(Answer { status, retry_after: false, kept: Some(kept), provider_id: None })
}

/// Why the operator settles it.
static ACT: LazyLock<Act> =
    LazyLock::new(|| Act::new("ann", "the bank said so").expect("a name and a reason"));

/// Settles a record as another process would; whether it was the one that did.
async fn settles(store: &dyn Store, id: RecordId, by: Finder<'_>, what: Found) -> bool {
    loop {
        let stored = load(store, id).await.expect("it stands");
        let event = Event::Found { nonce: nonce(), by, what: &what, as_of: stored.now, jitter: 0.0 };
        let change: Arc<Change> = match decide(Some(&stored.record), &event, stored.now) {
            Verdict::Keep(_) => return false,
            Verdict::Write(change, decision) => {
                assert_eq!(decision, Decision::Settled);
                Arc::from(change)
            }
        };
        match store.commit(vec![change]).await.pop().expect("one fate") {
            Ok(Commit::Done(_)) => return true,
            Ok(Commit::Conflict(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
