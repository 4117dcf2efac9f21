//! The contract of a store, as a suite that any store can run.
//!
//! It depends on `ibid_core` and on no store. The state machine may run on a store that passes [`exercise`], which runs the
//! suite of records and those of the capabilities that the store has.
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use ibid_core::store::{BoxFuture, Store};
//! use ibid_testkit::contract::{self, StoreUnderTest};
//!
//! struct Mine(Arc<dyn Store>);
//!
//! impl StoreUnderTest for Mine {
//!     fn store(&self) -> Arc<dyn Store> {
//!         self.0.clone()
//!     }
//!
//!     // A store whose clock can't be moved really waits; the whole suite asks for less than 400 ms.
//!     fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
//!         Box::pin(tokio::time::sleep(by))
//!     }
//! }
//!
//! async fn my_store_keeps_the_contract(store: Arc<dyn Store>) {
//!     contract::exercise(&Mine(store)).await;
//! }
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use ibid_core::change::{
    Change, Commit, Draft, Expect, History, HistoryKind, HistoryLine, InstantChange, StoredRecord,
};
use ibid_core::key::Key;
use ibid_core::machine::{AttemptResponse, Event, Intent, Verdict, decide};
use ibid_core::policy::Policy;
use ibid_core::reap::{ReapStep, ReapTarget};
use ibid_core::record::{Flags, Nonce, Record, RecordDetails, State};
use ibid_core::response::Response;
use ibid_core::scope::{Identity, Operation, RecordId, ScopeRule, Tenant};
use ibid_core::store::{BoxFuture, BrowseStore, Store, StoreError};
use ibid_core::time::Timestamp;

use crate::story;

pub mod bodies;
pub mod browsing;
pub mod copying;
pub mod evidence;
pub mod hot;
pub mod races;
pub mod sql;
pub mod upkeep;
pub mod writes;

/// A store that the suite runs on.
///
/// It is empty at the start, and only the suite writes to it while it runs.
pub trait StoreUnderTest: Send + Sync {
    /// Returns the store, the same one at every call.
    fn store(&self) -> Arc<dyn Store>;

    /// Moves the store's clock on by at least `by`: sets a manual clock, or waits. A store whose nodes have their own clocks
    /// is moved on by their largest difference besides, because it judges instants that much later.
    fn advance(&self, by: Duration) -> BoxFuture<'_, ()>;

    /// Returns how many writers race at once. A store whose test server takes milliseconds for each request takes fewer.
    fn racers(&self) -> usize {
        RACERS
    }
}

/// Checks everything that a store promises; panics at the first promise it breaks.
///
/// Run it on a multi-threaded runtime: races need threads.
pub async fn exercise(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    exercise_records(subject).await;
    if store.bodies().is_some() {
        exercise_bodies(subject).await;
    }
    if store.browse().is_some() {
        exercise_browse(subject).await;
    }
    if store.evidence().is_some() {
        exercise_evidence(subject).await;
    }
    if store.sql().is_some() {
        exercise_sql(subject).await;
    }
    if store.copy().is_some() {
        exercise_copy(subject).await;
    }
}

/// Checks the mandatory part of a store: records and settings. Its four parts may also run side by side.
pub async fn exercise_records(subject: &dyn StoreUnderTest) {
    exercise_writes(subject).await;
    exercise_upkeep(subject).await;
    exercise_races(subject).await;
    exercise_hot_path(subject).await;
}

/// Checks writes: preconditions, versions, and what is read back.
pub async fn exercise_writes(subject: &dyn StoreUnderTest) {
    writes::an_insert_wins_only_if_no_row_exists(subject).await;
    writes::a_write_at_another_version_is_refused(subject).await;
    writes::a_lost_race_carries_the_newer_record_with_its_answer(subject).await;
    writes::a_takeover_is_judged_inside_the_write(subject).await;
    writes::a_repeated_write_is_recognised_by_its_own_nonce(subject).await;
    writes::a_version_never_repeats_after_removal(subject).await;
    writes::one_changes_fate_never_touches_anothers(subject).await;
    writes::a_refused_change_leaves_no_body_and_no_history(subject).await;
    writes::a_body_of_an_old_generation_is_never_seen_by_a_new_one(subject).await;
    writes::an_answer_replaces_the_one_before_it(subject).await;
    writes::marks_keep_set_and_clear_instants(subject).await;
    writes::a_loaded_record_equals_the_written_one(subject).await;
    writes::every_record_keeps_its_own_policy(subject).await;
}

/// Checks renewals, due records, the reaper and settings.
pub async fn exercise_upkeep(subject: &dyn StoreUnderTest) {
    upkeep::a_renewal_moves_the_due_instant_and_nothing_else(subject).await;
    upkeep::a_renewal_at_another_version_is_lost(subject).await;
    upkeep::a_long_run_is_renewed_again_and_again_and_still_finishes(subject).await;
    upkeep::due_gives_one_state_longest_due_first(subject).await;
    upkeep::reaping_removes_the_oldest_first_and_nothing_before_its_time(subject).await;
    upkeep::an_expired_record_is_stripped_to_a_tombstone(subject).await;
    upkeep::a_dead_letter_is_neither_stripped_nor_removed(subject).await;
    upkeep::a_tombstone_gives_way_to_a_new_generation_whole(subject).await;
    upkeep::a_setting_changes_only_from_the_value_expected(subject).await;
    upkeep::the_first_value_kept_stays(subject).await;
}

/// Checks writers that race each other.
pub async fn exercise_races(subject: &dyn StoreUnderTest) {
    races::of_many_inserts_one_wins(subject).await;
    races::of_many_takeovers_one_wins_each_record(subject).await;
    races::a_renewal_and_a_takeover_never_both_win(subject).await;
    races::of_many_writers_of_a_value_all_get_the_same(subject).await;
    races::of_many_writers_of_a_setting_one_wins(subject).await;
    races::many_reapers_take_each_record_once(subject).await;
}

/// Checks the changes of an ordinary request, for which a store may have a shorter path.
pub async fn exercise_hot_path(subject: &dyn StoreUnderTest) {
    hot::a_fresh_record_and_its_finish_read_back_as_they_were_written(subject).await;
    hot::of_many_fresh_begins_one_wins(subject).await;
    hot::of_many_finishes_one_wins_each_record(subject).await;
    hot::of_a_finish_and_a_takeover_after_the_lease_one_wins(subject).await;
    hot::a_repeated_fresh_begin_and_a_repeated_finish_find_themselves(subject).await;
    hot::a_finish_counts_after_renewals(subject).await;
    hot::a_finish_after_a_takeover_is_refused(subject).await;
    hot::a_finish_after_a_removal_is_refused(subject).await;
    hot::a_fresh_record_is_due_once_when_its_lease_is_over(subject).await;
    hot::a_fresh_record_is_not_due_after_a_later_write(subject).await;
    hot::a_finished_record_goes_in_its_turn(subject).await;
    hot::each_of_a_mixed_batch_has_its_own_fate(subject).await;
}

/// Checks the bodies that a store keeps apart from its records.
pub async fn exercise_bodies(subject: &dyn StoreUnderTest) {
    bodies::bodies_are_found_by_their_generation(subject).await;
    bodies::a_body_replaces_the_one_of_its_kind(subject).await;
    bodies::cleared_bodies_are_gone(subject).await;
    bodies::a_refused_change_stores_no_body(subject).await;
    bodies::a_large_body_comes_back_whole(subject).await;
}

/// Checks work in the store's own transactions.
pub async fn exercise_sql(subject: &dyn StoreUnderTest) {
    sql::work_is_committed_unless_it_fails(subject).await;
    sql::a_policy_has_one_number(subject).await;
    sql::a_mark_is_settled_when_no_transaction_is_open(subject).await;
}

/// Checks lists, history, counts and previews.
pub async fn exercise_browse(subject: &dyn StoreUnderTest) {
    writes::a_change_without_a_draft_only_adds_to_the_history(subject).await;
    upkeep::a_tombstone_needs_no_secret(subject).await;
    upkeep::a_reap_preview_matches_the_reap(subject).await;
    upkeep::history_goes_after_its_time_if_its_record_is_gone(subject).await;
    browsing::a_list_is_filtered_and_paged(subject).await;
    browsing::a_list_is_narrowed_by_operation_age_and_dead_letter(subject).await;
    browsing::a_count_follows_every_write(subject).await;
    browsing::a_secret_that_records_need_is_found(subject).await;
    browsing::a_history_is_in_order_and_outlives_its_record(subject).await;
}

/// Checks the store of webhook evidence.
pub async fn exercise_evidence(subject: &dyn StoreUnderTest) {
    evidence::an_event_counts_once(subject).await;
    evidence::evidence_speaks_of_its_arrival_less_its_age(subject).await;
    evidence::open_evidence_is_found_by_record_and_page_by_page(subject).await;
    evidence::evidence_on_an_effect_is_found_by_the_providers_name_for_it(subject).await;
    evidence::evidence_is_used_up_with_its_change_or_not_at_all(subject).await;
    evidence::evidence_goes_after_its_time(subject).await;
    evidence::a_purged_event_may_be_about_another_record(subject).await;
    evidence::of_many_deliveries_of_an_event_one_is_new(subject).await;
}

/// Checks rows of a copy.
pub async fn exercise_copy(subject: &dyn StoreUnderTest) {
    copying::copied_rows_come_back_as_they_were(subject).await;
    copying::a_copied_row_replaces_its_earlier_version(subject).await;
    copying::a_copied_row_needs_its_fence(subject).await;
    copying::a_copied_record_lives_on(subject).await;
}

/// A record id that no other test uses.
#[derive(Clone, Debug)]
pub struct TestRecord {
    /// The id of the record.
    pub id: RecordId,
    /// The identity that the id was made from.
    pub identity: Arc<Identity>,
}

impl TestRecord {
    /// Makes one under a random key.
    pub fn fresh() -> TestRecord {
        TestRecord::of("shop", &format!("key-{:016x}", nonce().0))
    }

    /// Makes the one for `key` of `tenant`.
    pub fn of(tenant: &str, key: &str) -> TestRecord {
        let identity = Identity {
            tenant: Tenant::new(tenant).expect("the suite's tenants are well-formed"),
            operation: Operation { method: "POST".into(), path: "/payments".into() },
            key: Key::stored(key).expect("the suite's keys are well-formed"),
        };
        TestRecord { id: RecordId::of(&identity, ScopeRule::Operation), identity: Arc::new(identity) }
    }
}

/// Draws a nonce that was never drawn before.
pub fn nonce() -> Nonce {
    Nonce(getrandom::u64().expect("the system gives random bytes"))
}

/// A draft in `state` that is never due, never expires and is never removed.
pub fn draft(name: &TestRecord, state: State) -> Draft {
    Draft {
        identity: name.identity.clone(),
        birth: Nonce(0),
        owner: Nonce(0),
        attempt: 1,
        state,
        flags: Flags::default(),
        fingerprint: None,
        policy: Arc::new(Policy::default().with(|policy| policy.lease = LONG)),
        point: 0,
        created: InstantChange::Keep,
        ran: InstantChange::Keep,
        completed: InstantChange::Keep,
        due_in: None,
        expires_in: None,
        purge_in: None,
        note: RecordDetails::default(),
    }
}

/// Returns the change for the first request under a name. The machine makes it, because stores have a shorter path for
/// exactly this change. The lease and the other rules are those of `policy`.
pub fn fresh_under(name: &TestRecord, policy: &Arc<Policy>) -> Change {
    let mut ask = story::ask("shop", "100 to ann", policy.clone(), nonce());
    (ask.id, ask.identity) = (name.id, name.identity.clone());
    let event = Event::Request { ask: &ask, role: Intent::MayRun };
    written(decide(None, &event, Timestamp::from_micros(0)))
}

/// Like [`fresh_under`], with the default policy and this lease.
pub fn fresh(name: &TestRecord, lease: Duration) -> Change {
    fresh_under(name, &Arc::new(Policy::default().with(|policy| policy.lease = lease)))
}

/// Returns the change, made by the machine, for an attempt that runs `record` and finishes with a response that is stored.
pub fn finish_with(record: &Record, answer: &'static [u8]) -> Change {
    let stored = Some(response(answer));
    let answer =
        &AttemptResponse { status: 201, retry_after: false, kept: stored, provider_id: None, proof: None };
    let event = Event::Answered { begun: record, nonce: nonce(), answer };
    written(decide(Some(record), &event, record.created_at))
}

fn written(verdict: Verdict) -> Change {
    match verdict {
        Verdict::Write(change, _) => Arc::unwrap_or_clone(change),
        Verdict::Keep(decision) => panic!("there is something to write: {decision:?}"),
    }
}

/// Builds a change that begins a generation if no row exists.
pub fn insert(name: &TestRecord, draft: Draft) -> Change {
    let nonce = nonce();
    let draft = Draft { birth: nonce, owner: nonce, ..draft };
    write(name.id, Expect::Absent, nonce, draft)
}

/// Builds a change of the record as it was read, within its generation.
pub fn replace(before: &Record, draft: Draft) -> Change {
    let draft = Draft { birth: before.birth, owner: before.owner, ..with_status_of(before, draft) };
    write(before.id, Expect::Version(before.version), nonce(), draft)
}

/// Builds a change of the record as it was read, if its due instant has passed.
pub fn take_over(before: &Record, draft: Draft) -> Change {
    let nonce = nonce();
    let draft = Draft { birth: before.birth, owner: nonce, ..with_status_of(before, draft) };
    write(before.id, Expect::Due(before.version), nonce, draft)
}

/// Keeps the status of the stored response: a change that leaves the response alone, as the machine makes it, does.
fn with_status_of(before: &Record, mut draft: Draft) -> Draft {
    draft.note.status = draft.note.status.or(before.note.status);
    draft
}

fn write(id: RecordId, expect: Expect, nonce: Nonce, draft: Draft) -> Change {
    Change {
        id,
        expect,
        nonce,
        draft: Some(draft),
        response: None,
        clears_bodies: false,
        bodies: vec![],
        history: vec![],
        uses: None,
    }
}

/// Adds a response with this body to the change, and its status.
pub fn answering(mut change: Change, body: &'static [u8]) -> Change {
    change.response = Some(response(body));
    if let Some(draft) = &mut change.draft {
        draft.note.status = Some(STATUS);
    }
    change
}

/// A response with this body and one header line.
pub fn response(body: impl Into<Bytes>) -> Arc<Response> {
    let headers = vec![("content-type".to_owned(), Bytes::from_static(b"text/plain"))];
    Arc::new(Response { status: STATUS, headers, body: body.into(), trailers: Vec::new() })
}

/// Adds a history line to the change.
pub fn telling(mut change: Change, what: HistoryKind, detail: &str) -> Change {
    change.history.push(History { what, detail: detail.to_owned() });
    change
}

/// Commits one change and returns its outcome.
pub async fn commit(store: &dyn Store, change: &Change) -> Commit {
    let fate = store.commit(Arc::new(change.clone()), None).await;
    fate.unwrap_or_else(|error| panic!("a commit failed: {error}: {:?}", cause(&error)))
}

/// Commits the changes, all at once, and returns each outcome by id.
pub async fn commit_all(store: &dyn Store, changes: Vec<Change>) -> HashMap<RecordId, Commit> {
    let fates = changes.iter().map(async |change| (change.id, commit(store, change).await));
    join_all(fates).await.into_iter().collect()
}

/// Loads the records with these ids, in their order; those that are absent are left out.
pub async fn load_all(store: &dyn Store, ids: impl IntoIterator<Item = RecordId>) -> Vec<StoredRecord> {
    join_all(ids.into_iter().map(|id| load(store, id))).await.into_iter().flatten().collect()
}

/// Writes a change that must be accepted, and returns the stored record, which must be exactly what the change says.
pub async fn put(store: &dyn Store, change: &Change) -> StoredRecord {
    let before = load(store, change.id).await.map(|stored| stored.record);
    let Commit::Done(stamp) = commit(store, change).await else {
        panic!("a change without a conflict was refused: {change:?}");
    };
    let stored = load(store, change.id).await.expect("what was just written is there");
    assert_eq!(
        Some(&stored.record),
        change.apply(stamp, before.as_deref()).as_ref(),
        "written and loaded differ"
    );
    stored
}

/// Loads the record with this id.
pub async fn load(store: &dyn Store, id: RecordId) -> Option<StoredRecord> {
    store.load(id).await.expect("a load succeeds")
}

/// Commits a change that must be refused, and returns the record that it conflicts with.
pub async fn expect_conflict(store: &dyn Store, change: &Change, why: &str) -> Option<StoredRecord> {
    match commit(store, change).await {
        Commit::Conflict(stored) => stored.map(|stored| *stored),
        Commit::Done(_) => panic!("a change was taken although {why}"),
    }
}

/// Reaps a target to its end, in steps of 97 rows, and returns the sums.
pub async fn reap_all(store: &dyn Store, course: ReapTarget) -> ReapStep {
    let mut all = ReapStep::default();
    loop {
        let step = store.reap(course, all.next, 97).await.expect("a reaping succeeds");
        assert!(step.stripped + step.removed <= 97 || course != ReapTarget::Records, "no more than asked");
        all.stripped += step.stripped;
        all.removed += step.removed;
        all.held += step.held;
        all.next = step.next;
        if all.next.is_none() {
            return all;
        }
    }
}

/// Returns the records in `state` that are due, one page of up to `limit`.
pub async fn due(store: &dyn Store, state: State, limit: u32) -> Vec<StoredRecord> {
    store.due(state, None, limit).await.expect("due is answered").items
}

/// Returns the history of a record; empty for a store that keeps none.
pub async fn history(store: &dyn Store, id: RecordId) -> Vec<HistoryLine> {
    match store.browse() {
        Some(browse) => browse.history(id).await.expect("a history is read"),
        None => Vec::new(),
    }
}

/// Returns what operators may ask of the store, which the suite was started with.
pub fn browse(store: &dyn Store) -> &dyn BrowseStore {
    store.browse().expect("the suite runs on a store that can be browsed")
}

fn cause(error: &StoreError) -> Option<String> {
    std::error::Error::source(error).map(ToString::to_string)
}

/// Usual number of racers: enough that some arrive within one batch and some within the next.
const RACERS: usize = 200;

/// Status of the suite's responses.
const STATUS: u16 = 201;

/// An interval that has passed once the clock was moved by [`TICK`].
pub const SHORT: Duration = Duration::from_millis(5);

/// Distance that the suite moves the clock: longer than [`SHORT`], short enough for stores that really wait.
pub const TICK: Duration = Duration::from_millis(10);

/// An interval that never passes while the suite runs, however slow the machine.
pub const LONG: Duration = Duration::from_secs(3600);
