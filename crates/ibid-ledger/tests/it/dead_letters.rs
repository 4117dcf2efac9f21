//! Dead letters of a ledger on real stores.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ibid::Store;
use ibid::operator::OperatorAction;
use ibid::operator::{Operator, OperatorError};
use ibid::outbox::{EffectFilter, EffectState, StoredEffect};
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid::upkeep::{Retention, reap_once};
use ibid::{Ibid, Settings};
use ibid_ledger::{
    Comparison, DEAD_LETTER_KIND, DeadLetterError, LedgerDifference, LedgerLine, write_dead_letters,
};
use ibid_testkit::postgres::Postgres;

fn because(reason: &str) -> OperatorAction {
    OperatorAction::new("ann", reason).expect("a name and a reason")
}

/// Returns the differences between their lines with these keys and ours, which has `a`.
fn differences(theirs: &[&str]) -> Vec<LedgerDifference> {
    let line = |number, key: &str| LedgerLine::new(number, key, Vec::new());
    let mut comparison = Comparison::new(Vec::new());
    comparison.ours(line(1, "a")).unwrap();
    for (number, key) in (1..).zip(theirs) {
        comparison.theirs(line(number, key), || format!("{{\"key\":\"{key}\"}}")).unwrap();
    }
    comparison.finish().differences
}

async fn load_dead_letters(ibid: &Ibid) -> Vec<StoredEffect> {
    Operator::new(ibid).effects(EffectFilter::default()).await.unwrap().0
}

async fn each_dead_letter_is_written_once(store: Arc<dyn Store>) {
    let differences_found = differences(&["a", "x", "a", ""]);
    assert_eq!(write_dead_letters(&*store, "acme", &differences_found).await.unwrap(), 3);
    assert_eq!(write_dead_letters(&*store, "acme", &differences_found).await.unwrap(), 0);
    // Another provider's keys are different keys, and a third of a kind is not its second.
    assert_eq!(write_dead_letters(&*store, "other", &differences(&["a", "x"])).await.unwrap(), 1);
    assert_eq!(write_dead_letters(&*store, "acme", &differences(&["a", "a", "a"])).await.unwrap(), 1);

    let ibid = Ibid::start(store.clone(), Settings::default()).await.unwrap();
    let all = load_dead_letters(&ibid).await;
    assert_eq!(all.len(), 5);
    for letter in &all {
        assert_eq!(
            (letter.state, letter.kind.as_str(), letter.due_at),
            (EffectState::Dead, DEAD_LETTER_KIND, None)
        );
    }
    // The most serious one is first.
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
    let discarded = load_dead_letters(&ibid).await.into_iter().find(|letter| letter.seq == seq).unwrap();
    assert_eq!(discarded.state, EffectState::Discarded);
    // A dead letter that an operator has handled does not return with the next comparison.
    assert_eq!(write_dead_letters(&*store, "acme", &differences_found).await.unwrap(), 0);
    assert_eq!(load_dead_letters(&ibid).await.len(), 5);
    // Nor when its retention is over: its line goes, its name stays.
    let keep = Retention::default().with(|keep| keep.effects = Duration::ZERO);
    assert_eq!(reap_once(&ibid, keep).await.unwrap().effects, 0);
    assert_eq!(write_dead_letters(&*store, "acme", &differences_found).await.unwrap(), 0);
    let all = load_dead_letters(&ibid).await;
    assert_eq!(
        all.iter().filter(|letter| letter.payload.is_empty()).map(|letter| letter.seq).collect::<Vec<_>>(),
        [seq]
    );
    assert_eq!(all.len(), 5);
}

fn sqlite(path: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(path, SqliteOptions::default()).unwrap())
}

#[tokio::test]
async fn each_dead_letter_is_written_once_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    each_dead_letter_is_written_once(sqlite(&folder.path().join("a.db"))).await;
}

#[tokio::test]
async fn many_letters_are_written_in_batches() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder.path().join("a.db"));
    let keys: Vec<String> = (0..257).map(|n| format!("k{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(write_dead_letters(&*store, "acme", &differences(&keys)).await.unwrap(), 257);
}

#[tokio::test]
async fn dead_letters_need_an_outbox_and_a_named_source() {
    let memory = MemoryStore::new(Clock::system());
    let differences_found = differences(&["x"]);
    assert!(matches!(
        write_dead_letters(&memory, "acme", &differences_found).await,
        Err(DeadLetterError::NoSql)
    ));
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder.path().join("a.db"));
    assert!(matches!(
        write_dead_letters(&*store, "", &differences_found).await,
        Err(DeadLetterError::Source(_))
    ));
}

#[tokio::test]
async fn each_dead_letter_is_written_once_on_postgres() {
    let server = Postgres::shared();
    let store = PostgresStore::open(&server.url(), PostgresOptions::default()).await.unwrap();
    each_dead_letter_is_written_once(Arc::new(store)).await;
}
