//! The reaper under the engine, on the stores with a manual clock: what is removed when, and what a client then gets.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use ibid::outcome::{Begin, Outcome};
use ibid::store::clock::{Clock, ClockSetter};
use ibid::store::memory::MemoryStore;
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid::upkeep::{ReapPreview, ReapStats, Retention, reap_once, reap_preview, reap_store};
use ibid::{Ibid, Settings};
use ibid_core::change::{Draft, HistoryKind};
use ibid_core::machine::BeginRequest;
use ibid_core::policy::{AfterExpiry, AnswerRule, Policy};
use ibid_core::reap::{ReapCount, ReapTarget};
use ibid_core::record::{ErrorCode, State};
use ibid_core::response::Response;
use ibid_core::scope::RecordId;
use ibid_core::store::{RecordFilter, Store};
use ibid_core::time::Timestamp;
use ibid_testkit::contract::{TestRecord, draft, insert, put, telling};
use ibid_testkit::faults::{FaultyStore, StoreFault};
use metrics_exporter_prometheus::PrometheusBuilder;

use crate::request_fixture::{ask, takes_over_at_start};

#[tokio::test]
async fn a_tombstone_refuses_its_key_until_it_is_purged() {
    for world in [NodeAndStore::in_memory().await, NodeAndStore::on_sqlite().await] {
        let policy = Policy::default().with(|policy| {
            policy.retention = HOUR;
            policy.tombstone = 24 * HOUR;
            policy.after_expiry = AfterExpiry::Refuse;
        });
        world.pay("k", &policy).await;
        world.hands.advance(HOUR);
        assert!(
            matches!(world.begin("k", &policy).await, Begin::Skip(Outcome::Expired)),
            "whether or not the reaper came"
        );
        let ripe = ReapCount { strip: 1, remove: 0 };
        assert_eq!(world.preview().await, preview(|s| s.records = ripe));
        assert_eq!(world.reap().await, stats(|s| s.stripped = 1));
        let tomb = world.only_record().await;
        assert!(tomb.identity.is_forgotten() && tomb.fingerprint.is_some(), "{tomb:?}");
        assert!(
            matches!(world.begin("k", &policy).await, Begin::Skip(Outcome::Expired)),
            "the id is enough to refuse by"
        );
        assert_eq!(world.reap().await, ReapStats::default(), "once");
        world.hands.advance(24 * HOUR);
        assert_eq!(world.reap().await, stats(|s| s.removed = 1));
        assert!(matches!(world.begin("k", &policy).await, Begin::Run(_)), "as new");
    }
}

#[tokio::test]
async fn an_expired_key_may_run_again_over_its_tombstone() {
    for world in [NodeAndStore::in_memory().await, NodeAndStore::on_sqlite().await] {
        let policy = Policy::default().with(|policy| {
            policy.retention = HOUR;
            policy.tombstone = 24 * HOUR;
        });
        world.pay("k", &policy).await;
        world.hands.advance(HOUR);
        assert_eq!(world.reap().await.stripped, 1);
        world.pay("k", &policy).await;
        assert_eq!(world.only_record().await.identity.key.as_str(), "k");
        assert!(matches!(world.begin("k", &policy).await, Begin::Skip(Outcome::Completed(_))));
        assert_eq!(world.reap().await, ReapStats::default(), "its time starts again");
        world.hands.advance(HOUR);
        assert_eq!(world.reap().await.stripped, 1, "and ends again");
    }
}

#[tokio::test]
async fn without_a_tombstone_a_record_is_removed_at_once() {
    for world in [NodeAndStore::in_memory().await, NodeAndStore::on_sqlite().await] {
        let policy = Policy::default();
        world.pay("done", &policy).await;
        let Begin::Run(running) = world.begin("running", &policy).await else { panic!("it is new") };
        let Begin::Run(lost) = world.begin("unknown", &policy).await else { panic!("it is new") };
        let (_, _late) = lost.unknown(ErrorCode::Broken).await;
        world.hands.advance(24 * HOUR);
        assert_eq!(world.reap().await, stats(|s| s.removed = 1));
        world.hands.advance(900 * 24 * HOUR);
        assert_eq!(world.reap().await, ReapStats::default());
        assert_eq!(
            world
                .store
                .browse()
                .expect("a store that can be browsed")
                .list(RecordFilter::default())
                .await
                .unwrap()
                .items
                .len(),
            2
        );
        drop(running);
    }
}

#[tokio::test]
async fn an_unknown_record_expires_with_a_warning() {
    for world in [NodeAndStore::in_memory().await, NodeAndStore::on_sqlite().await] {
        let policy = Policy::default().with(|policy| {
            policy.unknown_retention = Some(48 * HOUR);
            policy.tombstone = HOUR;
        });
        let Begin::Run(lost) = world.begin("k", &policy).await else { panic!("it is new") };
        drop(lost.unknown(ErrorCode::Broken).await);
        world.hands.advance(47 * HOUR);
        assert_eq!(world.reap().await, ReapStats::default());
        assert!(matches!(
            world.begin("k", &policy).await,
            Begin::Skip(Outcome::Unknown { settled_in: None })
        ));
        world.hands.advance(HOUR);
        let id = world.only_record().await.id;
        assert_eq!(
            world.reap().await,
            stats(|s| {
                s.settled = 1;
                s.stripped = 1;
            })
        );
        let history = world.store.browse().expect("a store that can be browsed").history(id).await.unwrap();
        assert!(history.iter().any(|line| line.detail.contains("unknown_retention")), "{history:?}");
        assert!(matches!(world.begin("k", &policy).await, Begin::Run(_)), "as new");
    }
}

#[tokio::test]
async fn what_was_accepted_and_never_claimed_is_answered_with_408() {
    for world in [NodeAndStore::in_memory().await, NodeAndStore::on_sqlite().await] {
        let policy = Policy::default().with(|policy| policy.answer = AnswerRule::Async);
        let mut ask = world.ask("k", &policy);
        ask.later = Some(Bytes::from_static(b"the request"));
        assert!(matches!(world.ibid.begin(ask).await, Ok(Begin::Skip(Outcome::Accepted { .. }))));
        world.hands.advance(policy.pending_deadline);
        assert_eq!(world.reap().await, stats(|s| s.settled = 1));
        let record = world.only_record().await;
        assert_eq!((record.state, record.note.status), (State::Completed, Some(408)));
        assert_eq!(world.reap().await, ReapStats::default());
    }
}

#[tokio::test]
async fn an_unclaimed_request_is_found_behind_those_with_time_left() {
    for world in [NodeAndStore::in_memory().await, NodeAndStore::on_sqlite().await] {
        let accept = async |key: &str, deadline| {
            let policy = Policy::default().with(|policy| {
                policy.answer = AnswerRule::Async;
                policy.pending_deadline = deadline;
            });
            let mut ask = world.ask(key, &policy);
            ask.later = Some(Bytes::from_static(b"the request"));
            assert!(matches!(world.ibid.begin(ask).await, Ok(Begin::Skip(Outcome::Accepted { .. }))));
            world.hands.advance(Duration::from_micros(1));
        };
        for n in 0..600 {
            accept(&format!("long {n}"), 24 * HOUR).await;
        }
        accept("short", HOUR).await;
        world.hands.advance(HOUR);
        assert_eq!(world.reap().await.settled, 1);
        accept("another", HOUR).await;
        world.hands.advance(HOUR);
        let store: &dyn Store = &**world.ibid.store();
        let reaped = reap_store(store, Retention::default(), |_| {}).await.expect("the store answers");
        assert_eq!(reaped.settled, 1);
    }
}

#[tokio::test]
async fn a_round_skips_a_bounded_number_of_rows() {
    let world = NodeAndStore::on_sqlite().await;
    let live = TestRecord::fresh();
    let mut change = insert(&live, draft(&live, State::Unknown));
    for _ in 0..15_000 {
        change = telling(change, HistoryKind::ReconcileTry, "");
    }
    put(&*world.store, &change).await;
    world.going().await;
    let keep = Retention::default().with(|keep| keep.history = HOUR);
    world.hands.advance(HOUR);
    assert_eq!(reap_preview(&*world.store, keep).await.unwrap().history, 0, "its record is there");
    let reap = async || {
        let harvest = reap_once(&world.ibid, keep).await.unwrap();
        (harvest.removed, harvest.history, harvest.unfinished)
    };
    assert_eq!(reap().await, (1, 0, false), "it did not come to the line behind the many");
    assert_eq!(reap().await, (0, 1, false));
    assert_eq!(reap().await, (0, 0, false), "from the start again");
    assert_eq!(
        world.store.browse().expect("a store that can be browsed").history(live.id).await.unwrap().len(),
        15_000
    );
}

#[tokio::test]
async fn a_failing_reap_target_does_not_stop_the_others() {
    let keep = Retention::default().with(|keep| keep.history = HOUR);
    for fails in [ReapTarget::Records, ReapTarget::Effects { keep: keep.effects }] {
        let (clock, hands) = Clock::manual(START);
        let faulty = FaultyStore::new(Arc::new(MemoryStore::new(clock)));
        let world = NodeAndStore::new(faulty.clone(), hands, None).await;
        let recorder = PrometheusBuilder::new().build_recorder();
        let metrics_page = recorder.handle();
        let _counts = metrics::set_default_local_recorder(&recorder);
        let gone = world.going().await;
        assert_eq!(world.reap().await.removed, 1);
        world.hands.advance(HOUR);
        let late = world.going().await;
        faulty.set(StoreFault::FailsOn(fails));
        let error = reap_once(&world.ibid, keep).await.expect_err("a course failed");
        assert!(!error.is_transient(), "the failure is reported: {error:?}");
        assert!(
            world
                .store
                .browse()
                .expect("a store that can be browsed")
                .history(gone)
                .await
                .unwrap()
                .is_empty(),
            "history was seen to after {fails:?}"
        );
        let left = usize::from(fails == ReapTarget::Records);
        assert_eq!(
            world
                .store
                .browse()
                .expect("a store that can be browsed")
                .list(RecordFilter::default())
                .await
                .unwrap()
                .items
                .len(),
            left
        );
        let gauge = format!("ibid_records{{state=\"completed\"}} {left}\n");
        assert!(metrics_page.render().contains(&gauge), "{}", metrics_page.render());
        faulty.set(StoreFault::None);
        assert_eq!(reap_once(&world.ibid, keep).await.unwrap().removed, left as u64);
        assert_eq!(
            world.store.browse().expect("a store that can be browsed").history(late).await.unwrap().len(),
            1
        );
        assert!(
            metrics_page.render().contains("ibid_retention_pruned_total 2\n"),
            "both are counted: {}",
            metrics_page.render()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_backlog_of_records_leaves_time_for_history() {
    let (clock, hands) = Clock::manual(START);
    let faulty = FaultyStore::new(Arc::new(MemoryStore::new(clock)));
    let world = NodeAndStore::new(faulty.clone(), hands, None).await;
    let name = TestRecord::fresh();
    let going = Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) };
    let mut change = insert(&name, going.clone());
    for _ in 0..1000 {
        change = telling(change, HistoryKind::ReconcileTry, "");
    }
    put(&*world.store, &change).await;
    assert_eq!(world.reap().await.removed, 1);
    world.hands.advance(HOUR);
    // More than eight steps of five seconds remove.
    for _ in 0..6000 {
        let name = TestRecord::fresh();
        let going = Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) };
        put(&*world.store, &insert(&name, going)).await;
    }
    faulty.set(StoreFault::SlowReaping);
    let node = Ibid::for_upkeep(world.store.clone(), takes_over_at_start());
    let keep = Retention::default().with(|keep| keep.history = HOUR);
    let stats = reap_once(&node, keep).await.expect("the store answers");
    assert!(stats.unfinished && stats.removed > 0, "{stats:?}");
    assert!(stats.history > 64, "more than one first step: {stats:?}");
}

#[tokio::test]
async fn a_store_far_ahead_of_this_node_is_not_reaped() {
    for world in [NodeAndStore::in_memory().await, NodeAndStore::on_sqlite().await] {
        let minute = HOUR / 60;
        world.going().await;
        let node_now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        world.hands.advance(node_now - Duration::from_micros(START.as_micros() as u64) + 5 * minute);
        assert_eq!(world.reap().await.removed, 1, "two clocks are never quite the same");
        world.going().await;
        world.hands.advance(10 * minute);
        assert_eq!(world.reap().await, ReapStats::default(), "by a node that has seen no leap");
        let refused = reap_store(&*world.store, Retention::default(), |_| {}).await;
        let error = refused.expect_err("an operator learns why");
        assert!(error.is_unwritten() && !error.is_transient(), "{error:?}");
        let browse = world.store.browse().expect("a store that can be browsed");
        assert_eq!(browse.list(RecordFilter::default()).await.expect("a list").items.len(), 1);
    }
}

#[tokio::test]
async fn an_estimated_count_is_marked_in_the_metrics() {
    let (clock, hands) = Clock::manual(START);
    let faulty = FaultyStore::new(Arc::new(MemoryStore::new(clock)));
    let world = NodeAndStore::new(faulty.clone(), hands, None).await;
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics_page = recorder.handle();
    let _counts = metrics::set_default_local_recorder(&recorder);
    for (fault, estimated) in [(StoreFault::None, 0), (StoreFault::Estimates, 1), (StoreFault::None, 0)] {
        faulty.set(fault);
        world.reap().await;
        let gauge = format!("ibid_records_estimated{{state=\"completed\"}} {estimated}\n");
        assert!(metrics_page.render().contains(&gauge), "{}", metrics_page.render());
    }
}

/// A node, and the store whose clock the test moves.
struct NodeAndStore {
    ibid: Ibid,
    store: Arc<dyn Store>,
    hands: ClockSetter,
    _directory: Option<tempfile::TempDir>,
}

impl NodeAndStore {
    async fn in_memory() -> NodeAndStore {
        let (clock, hands) = Clock::manual(START);
        NodeAndStore::new(Arc::new(MemoryStore::new(clock)), hands, None).await
    }

    async fn on_sqlite() -> NodeAndStore {
        let (clock, hands) = Clock::manual(START);
        let directory = tempfile::tempdir().expect("a directory");
        let options = SqliteOptions::default().with(|options| options.clock = clock);
        let store = SqliteStore::open(&directory.path().join("ibid.db"), options).expect("it opens");
        NodeAndStore::new(Arc::new(store), hands, Some(directory)).await
    }

    async fn new(
        store: Arc<dyn Store>,
        hands: ClockSetter,
        directory: Option<tempfile::TempDir>,
    ) -> NodeAndStore {
        // A node's cache uses real time, so it is turned off.
        let settings = Settings::default().with(|settings| settings.cache_ttl = Duration::ZERO);
        let ibid = Ibid::start(store.clone(), settings).await.expect("it starts");
        NodeAndStore { ibid, store, hands, _directory: directory }
    }

    fn ask(&self, key: &str, policy: &Policy) -> BeginRequest {
        ask(&self.ibid, "shop", key, policy.clone())
    }

    async fn begin(&self, key: &str, policy: &Policy) -> Begin {
        self.ibid.begin(self.ask(key, policy)).await.expect("the store answers")
    }

    async fn pay(&self, key: &str, policy: &Policy) {
        let Begin::Run(attempt) = self.begin(key, policy).await else { panic!("`{key}` is not new") };
        let answer = Response::plain(201, "text/plain", "paid".to_owned());
        assert!(matches!(attempt.finish(answer).await, Outcome::Completed(_)));
    }

    /// Inserts a record that is due for removal, with a history line.
    async fn going(&self) -> RecordId {
        let name = TestRecord::fresh();
        let going = Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) };
        put(&*self.store, &telling(insert(&name, going), HistoryKind::Settled, "")).await;
        name.id
    }

    /// Runs one round at a node that has seen no clock leap.
    async fn reap(&self) -> ReapStats {
        let node = Ibid::for_upkeep(self.store.clone(), takes_over_at_start());
        reap_once(&node, Retention::default()).await.expect("the store answers")
    }

    async fn preview(&self) -> ReapPreview {
        reap_preview(&*self.store, Retention::default()).await.expect("the store answers")
    }

    async fn only_record(&self) -> Arc<ibid_core::record::Record> {
        let mut all = self
            .store
            .browse()
            .expect("a store that can be browsed")
            .list(RecordFilter::default())
            .await
            .expect("a list")
            .items;
        assert_eq!(all.len(), 1);
        all.remove(0).record
    }
}

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);

fn stats(change: impl FnOnce(&mut ReapStats)) -> ReapStats {
    let mut stats = ReapStats::default();
    change(&mut stats);
    stats
}

fn preview(change: impl FnOnce(&mut ReapPreview)) -> ReapPreview {
    let mut preview = ReapPreview::default();
    change(&mut preview);
    preview
}
