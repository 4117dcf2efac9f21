//! `ibid reap` and the gateway's upkeep as processes: counted, two at once, and killed midway.

use std::collections::HashSet;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid_core::change::{Change, Draft, HistoryKind, StoredRecord};
use ibid_core::record::State;
use ibid_core::scope::RecordId;
use ibid_core::store::{RecordCounts, RecordFilter, Store};
use ibid_testkit::contract::{LONG, TestRecord, answering, commit_all, draft, insert, load_all};
use serde_json::{Value, json};

use crate::harness::{On, Setup, on_every_store, until_async};

async fn a_dry_run_counts_what_the_next_run_removes(on: On) {
    let world = SharedStore::new(on).await;
    world.fill(300, 40, 20).await;
    let expected = json!({ "stripped": 40, "removed": 300, "effects": 0, "history": 0 });
    for _ in 0..2 {
        assert_eq!(json_of(&world.ibid(&["reap", "--dry-run", "--json"])), expected);
    }
    let output = text_of(&world.ibid(&["reap", "--dry-run"]));
    assert!(output.contains("records that would go") && output.contains(" 300\n"), "{output}");
    let done = json_of(&world.ibid(&["reap", "--json"]));
    assert_eq!((&done["stripped"], &done["removed"]), (&json!(40), &json!(300)), "{done}");
    let nothing = json!({ "stripped": 0, "removed": 0, "effects": 0, "history": 0 });
    assert_eq!(json_of(&world.ibid(&["reap", "--dry-run", "--json"])), nothing);
    let listed = text_of(&world.ibid(&["keys", "list"]));
    assert_eq!(listed.lines().count(), 1 + 40 + 20, "a list shows tombstones too: {listed}");
    let refused = world.ibid(&["reap", "--every", "0s"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
on_every_store!(a_dry_run_counts_what_the_next_run_removes and mysql);

async fn records_held_by_the_application_are_skipped(on: On) {
    let world = SharedStore::new(on).await;
    world.fill(150, 0, 5).await;
    let id = if world.setup.server().is_some() { "uuid" } else { "binary(16)" };
    world.setup.sql(&format!(
        "create table payment (record {id} references ibid_record (id));
         insert into payment select id from ibid_record where purge_at is not null order by purge_at limit 100"
    ));
    let done = json_of(&world.ibid(&["reap", "--json"]));
    assert_eq!((&done["removed"], &done["held"]), (&json!(50), &json!(100)), "{done}");
    let output = text_of(&world.ibid(&["reap"]));
    assert!(output.contains("records held by rows that refer to them  100\n"), "{output}");
}
on_every_store!(records_held_by_the_application_are_skipped and mysql);

async fn two_reapers_at_once_remove_each_record_once(on: On) {
    let world = SharedStore::new(on).await;
    world.fill(900, 300, 20).await;
    let url = world.setup.store();
    let words = ["reap", "--json", "--store", &url];
    let children = [world.setup.spawn(&words), world.setup.spawn(&words)];
    let (mut stripped, mut removed) = (0, 0);
    for child in children {
        let done = json_of(&child.wait_with_output().expect("it ends"));
        stripped += done["stripped"].as_u64().expect("a number");
        removed += done["removed"].as_u64().expect("a number");
    }
    // A record that one reaper had locked while the other looked is left for the next round.
    let rest = json_of(&world.ibid(&["reap", "--json"]));
    stripped += rest["stripped"].as_u64().expect("a number");
    removed += rest["removed"].as_u64().expect("a number");
    assert_eq!((stripped, removed), (300, 900));
    world.is_whole(300).await;
}
on_every_store!(two_reapers_at_once_remove_each_record_once and mysql and redis);

async fn a_killed_reapers_work_is_finished_by_the_next_run(on: On) {
    let world = SharedStore::new(on).await;
    world.fill(1500, 300, 50).await;
    let url = world.setup.store();
    let mut kills_midway = 0;
    for _ in 0..3 {
        let before = world.left().await;
        let mut reaper = world.setup.spawn(&["reap", "--store", &url]);
        let look = async || {
            let ended = reaper.try_wait().expect("a child can be asked").is_some();
            (ended || world.left().await < before).then_some(())
        };
        until_async("it is at work", look).await;
        reaper.kill().expect("a child can be killed");
        reaper.wait().expect("a killed child ends");
        world.is_whole(world.tombs().await).await;
        kills_midway += usize::from(world.left().await > 300 + 50);
    }
    assert!(kills_midway > 0, "each reaper was done before it was killed");
    let done = text_of(&world.ibid(&["reap"]));
    assert!(done.contains("records removed"), "{done}");
    world.is_whole(300).await;
    assert_eq!(world.left().await, 300 + 50);
}
on_every_store!(a_killed_reapers_work_is_finished_by_the_next_run and mysql);

async fn a_killed_sweepers_lapses_are_each_counted_once(on: On) {
    let world = SharedStore::new(on).await;
    let names: Vec<TestRecord> = (0..300).map(|_| TestRecord::fresh()).collect();
    let lapsed = |name: &TestRecord| {
        insert(name, Draft { due_in: Some(Duration::ZERO), ..draft(name, State::InProgress) })
    };
    for few in names.chunks(250) {
        commit_all(&*world.store, few.iter().map(lapsed).collect()).await;
    }
    let setup = world.setup.clone().config("[upkeep]\nsweep_every = \"20ms\"\nreap_every = \"50ms\"\n");
    let unknown = async || {
        in_state(
            &world.store.browse().expect("a store that can be browsed").count().await.expect("a count"),
            State::Unknown,
        )
    };
    let mut first = setup.start();
    until_async("it sweeps", async || (unknown().await > 0).then_some(())).await;
    first.kill();
    let others = [setup.start(), setup.start()];
    let all = names.len() as u64;
    until_async("all are swept", async || (unknown().await == all).then_some(())).await;
    drop(others);
    for name in &names {
        let history = world
            .store
            .browse()
            .expect("a store that can be browsed")
            .history(name.id)
            .await
            .expect("a history is read");
        let lapses = history.iter().filter(|line| line.what == HistoryKind::Lapse).count();
        assert_eq!(lapses, 1, "{history:?}");
    }
}
on_every_store!(a_killed_sweepers_lapses_are_each_counted_once and mysql);

/// A store that the test fills and inspects, and that the binary works on.
struct SharedStore {
    setup: Setup,
    store: Arc<dyn Store>,
}

impl SharedStore {
    async fn new(on: On) -> SharedStore {
        // No request is sent, so no upstream is needed.
        let setup = Setup::before("http://127.0.0.1:9").on(on);
        let store: Arc<dyn Store> = match on {
            On::Sqlite => {
                let options = SqliteOptions::default().with(|options| options.busy_timeout = PATIENCE);
                Arc::new(SqliteStore::open(setup.database(), options).expect("the store opens"))
            }
            On::Postgres => {
                let options = PostgresOptions::default().with(|options| options.connection_wait = PATIENCE);
                Arc::new(PostgresStore::open(&setup.store(), options).await.expect("the store opens"))
            }
            #[cfg(feature = "mysql")]
            On::Mysql => {
                use ibid::store::mysql::{MysqlOptions, MysqlStore};
                let options = MysqlOptions::default().with(|options| options.connection_wait = PATIENCE);
                Arc::new(MysqlStore::open(&setup.store(), options).await.expect("the store opens"))
            }
            #[cfg(feature = "redis")]
            On::Redis => {
                use ibid::store::redis::{RedisOptions, RedisStore};
                let store = RedisStore::open(&setup.store(), RedisOptions::default()).await;
                Arc::new(store.expect("the store opens"))
            }
            #[cfg(feature = "dynamodb")]
            On::Dynamodb => unreachable!("no such test runs on it"),
        };
        SharedStore { setup, store }
    }

    fn ibid(&self, words: &[&str]) -> Output {
        let store = self.setup.store();
        self.setup.ibid(&[words, &["--store", &store]].concat())
    }

    /// Stores so many records that are past their tombstone, that are to become tombstones, and that are live, each
    /// with its response.
    async fn fill(&self, gone: usize, tombs: usize, live: usize) {
        let terms = [(gone, 0, 0), (tombs, 0, 1), (live, 1, 1)];
        let mut changes: Vec<Change> = Vec::new();
        for (count, expires, purge) in terms {
            let each = |_| {
                let name = TestRecord::fresh();
                let (expires_in, purge_in) = (Some(LONG * expires), Some(LONG * purge));
                let ending = Draft { expires_in, purge_in, ..draft(&name, State::Completed) };
                answering(insert(&name, ending), b"answer")
            };
            changes.extend((0..count).map(each));
        }
        let mut changes = changes.into_iter().peekable();
        while changes.peek().is_some() {
            commit_all(&*self.store, changes.by_ref().take(250).collect()).await;
        }
    }

    async fn left(&self) -> u64 {
        // Counts of completed records are estimates, so the rows are listed.
        self.all().await.len() as u64
    }

    async fn all(&self) -> Vec<(RecordId, bool)> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = RecordFilter::default().with(|filter| {
                filter.after = after;
                filter.limit = 1000;
            });
            let page =
                self.store.browse().expect("a store that can be browsed").list(page).await.expect("a list");
            let one = |stored: &StoredRecord| (stored.record.id, stored.record.identity.is_forgotten());
            all.extend(page.items.iter().map(one));
            after = page.next;
            if after.is_none() {
                return all;
            }
        }
    }

    async fn tombs(&self) -> u64 {
        self.all().await.iter().filter(|(_, tomb)| *tomb).count() as u64
    }

    /// Asserts that there are so many tombstones, none of them with a response, and that every other record has its
    /// response.
    async fn is_whole(&self, tombs: u64) {
        let all = self.all().await;
        let ids: HashSet<RecordId> = all.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids.len(), all.len(), "a list repeats none");
        assert_eq!(all.iter().filter(|(_, tomb)| *tomb).count() as u64, tombs);
        for few in all.chunks(500) {
            let records = load_all(&*self.store, few.iter().map(|(id, _)| *id)).await;
            assert_eq!(records.len(), few.len(), "each is there");
            for (stored, (_, tomb)) in records.into_iter().zip(few) {
                assert_eq!(stored.response.is_none(), *tomb, "all of a record or its tombstone");
            }
        }
    }
}

fn in_state(counts: &RecordCounts, state: State) -> u64 {
    let index = State::ALL.iter().position(|known| *known == state).expect("a known state");
    counts.by_state[index].value().expect("a count or an estimate")
}

fn text_of(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn json_of(output: &Output) -> Value {
    serde_json::from_str(&text_of(output)).expect("JSON")
}

/// Two processes share the file, and the machine is busy.
const PATIENCE: Duration = Duration::from_secs(30);
