//! Large bodies: in parts under the record's id, and gone with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{BodyKind, Change, Commit, Draft, HistoryKind, LoadedBody, StoredBody};
use ibid_core::reap::ReapTarget;
use ibid_core::record::{Record, State};
use ibid_core::store::{BodyStore, Store};
use ibid_dynamodb::NodeClock;
use ibid_testkit::contract::{
    TestRecord, commit, draft, insert, load, put, reap_all, replace, response, telling,
};
use ibid_testkit::dynamodb::{DynamoDb, ProxyAction};

use crate::fixture::{SKEW_MAX, items, number, open, open_via, sdk_config};

/// Four parts.
pub(crate) const LARGE: usize = 1_200_000;

/// Two parts.
const MEDIUM: usize = 400_000;

const MINUTE: Duration = Duration::from_secs(60);

/// A part that is older than an hour gets no name any more.
const ORPHAN_AGE: Duration = Duration::from_secs(3601);

#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_is_stored_in_parts_and_goes_with_its_record() {
    let server = DynamoDb::shared();
    let clock = NodeClock::default();
    let store = open(&server, &clock).await;
    let name = TestRecord::fresh();
    let large = |byte: u8| Bytes::from(vec![byte; LARGE]);
    let request = large(b'q');
    let mut begin = insert(&name, draft(&name, State::InProgress));
    begin.bodies.push(StoredBody { kind: BodyKind::Request, data: request.clone() });
    let running = put(&store, &begin).await.record;
    let bodies = BodyStore::bodies(&store, name.id, running.birth).await.expect("it answers");
    let request = LoadedBody { kind: BodyKind::Request.code(), data: request };
    assert_eq!(bodies, [request], "the request is read back");
    assert_eq!(part_count(&server).await, 4);

    let stored = put(&store, &ended_run(&name, &running, large(b'a'))).await;
    assert_eq!(stored.body(), Some(&large(b'a')[..]), "the response is read back");
    assert_eq!(part_count(&server).await, 4, "the request went with the commit that ended its need");

    let Commit::Conflict(Some(winner)) = commit(&store, &ended_run(&name, &running, large(b'z'))).await
    else {
        panic!("too late")
    };
    assert_eq!(winner.body(), Some(&large(b'a')[..]), "the loser learns the response, and overwrote nothing");
    assert_eq!(load(&store, name.id).await.expect("it is there").body(), Some(&large(b'a')[..]));
    assert_eq!(part_count(&server).await, 4, "the loser's parts are gone");

    clock.advance(MINUTE + SKEW_MAX);
    assert_eq!(reap_all(&store, ReapTarget::Records).await.removed, 1);
    assert_eq!(part_count(&server).await, 0, "all parts went with the record");
    let late = commit(&store, &ended_run(&name, &running, large(b'y'))).await;
    assert!(matches!(late, Commit::Conflict(None)), "{late:?}");
    assert_eq!(part_count(&server).await, 0, "a loser without a record leaves no parts, either");
}

/// T1 wrote the parts of a response, its record, and got no reply. An operator's change followed. T1 sends again.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_resend_does_not_delete_the_parts_that_a_record_names() {
    let server = DynamoDb::shared();
    let store = open(&server, &NodeClock::default()).await;
    let name = TestRecord::fresh();
    let running = put(&store, &insert(&name, draft(&name, State::InProgress))).await.record;
    let finish = ended_run(&name, &running, vec![b'a'; LARGE]);
    let done = put(&store, &finish).await;
    let mut again = draft(&name, State::Completed);
    again.note.status = Some(201);
    put(&store, &replace(&done.record, again)).await;
    assert!(matches!(commit(&store, &finish).await, Commit::Conflict(Some(_))));
    assert_eq!(load(&store, name.id).await.expect("it is there").response, done.response);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_with_history_deletes_the_parts_that_it_replaces() {
    let server = DynamoDb::shared();
    let store = open(&server, &NodeClock::default()).await;
    let name = TestRecord::fresh();
    let mut begin = insert(&name, draft(&name, State::InProgress));
    begin.bodies.push(StoredBody { kind: BodyKind::Request, data: vec![b'q'; MEDIUM].into() });
    let running = put(&store, &begin).await.record;
    // An answer that is kept for the operator, and then the one that settles the record.
    let mut unknown = draft(&name, State::Unknown);
    unknown.note.status = Some(500);
    let mut error = replace(&running, unknown);
    error.response = Some(response(vec![b'k'; MEDIUM]));
    let unknown = put(&store, &telling(error, HistoryKind::Unknown, "an error")).await.record;
    assert_eq!(part_count(&server).await, 4, "the request is still needed");
    let settled = telling(ended_run(&name, &unknown, vec![b's'; MEDIUM]), HistoryKind::Settled, "found");
    let settled = put(&store, &settled).await;
    assert_eq!(settled.body(), Some(&vec![b's'; MEDIUM][..]));
    assert_eq!(part_count(&server).await, 2, "only the last response is left");
}

/// A reaper that dies at any point leaves the record, which leads to the parts, or nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_parts_of_a_removed_record_go_before_it() {
    // Once the reaper dies before it deletes the parts, once before it deletes the record.
    for (deletes, parts_left) in [(r#""b#"#, 2), (r#"{"S":"r"}"#, 0)] {
        let server = DynamoDb::shared();
        let clock = NodeClock::default();
        let store = open(&server, &clock).await;
        let name = TestRecord::fresh();
        let running = put(&store, &insert(&name, draft(&name, State::InProgress))).await.record;
        put(&store, &ended_run(&name, &running, vec![b'a'; MEDIUM])).await;
        clock.advance(MINUTE + SKEW_MAX);
        let proxy = server.proxy(move |request| {
            match request.operation == "DeleteItem" && request.body.contains(deletes) {
                true => ProxyAction::Answer(500, String::new()),
                false => ProxyAction::Pass,
            }
        });
        let reaper = open_via(&proxy, &server, &clock).await;
        let step = reaper.reap(ReapTarget::Records, None, 10).await;
        assert!(step.is_err() || step.is_ok_and(|step| step.removed == 0), "{deletes}: it is not removed");
        assert_eq!(part_count(&server).await, parts_left, "{deletes}");
        let left = load(&store, name.id).await.expect("it is there");
        assert_eq!(left.response, None, "no reader misses a part");
        // Parts that have no name any more go once they are too old to get one.
        clock.advance(ORPHAN_AGE + SKEW_MAX);
        assert_eq!(reap_all(&store, ReapTarget::Records).await.removed, 1);
        assert_eq!((items(&server, "r").await.len(), part_count(&server).await), (0, 0));
    }
}

/// T1 writes the parts of its change, and its record is not written yet; T2 reaps. Then T1 dies.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_stays_until_its_youngest_part_is_an_orphan() {
    let server = DynamoDb::shared();
    let clock = NodeClock::default();
    let is_dying = Arc::new(AtomicBool::new(false));
    let dies = is_dying.clone();
    let proxy =
        server.proxy(move |request| match request.operation == "UpdateItem" && dies.load(Ordering::SeqCst) {
            true => ProxyAction::Answer(500, String::new()),
            false => ProxyAction::Pass,
        });
    let writer = open_via(&proxy, &server, &clock).await;
    let reaper = open(&server, &clock).await;
    let name = TestRecord::fresh();
    let short = Draft { purge_in: Some(MINUTE), ..draft(&name, State::Retryable) };
    let freed = put(&writer, &insert(&name, short)).await.record;
    clock.advance(MINUTE + SKEW_MAX);
    is_dying.store(true, Ordering::SeqCst);
    let finish = Arc::new(ended_run(&name, &freed, vec![b'a'; MEDIUM]));
    writer.commit(finish, None).await.expect_err("it dies");
    assert_eq!(part_count(&server).await, 2, "it has written its parts");
    assert_eq!(reap_all(&reaper, ReapTarget::Records).await.removed, 0, "the parts may yet be named");
    clock.advance(ORPHAN_AGE + SKEW_MAX);
    assert_eq!(reap_all(&reaper, ReapTarget::Records).await.removed, 1);
    assert_eq!(part_count(&server).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn time_to_live_takes_a_record_first_and_its_parts_later() {
    let server = DynamoDb::shared();
    let store = open(&server, &NodeClock::default()).await;
    let name = TestRecord::fresh();
    let mut begin = insert(&name, draft(&name, State::InProgress));
    begin.bodies.push(StoredBody { kind: BodyKind::Request, data: vec![b'q'; MEDIUM].into() });
    let running = put(&store, &begin).await.record;
    let ttls = async |prefix: &'static str| -> Vec<Option<i64>> {
        items(&server, prefix).await.iter().map(|item| number(item, "ttl_s")).collect()
    };
    assert_eq!((ttls("r").await, ttls("b#").await), (vec![None], vec![None; 2]), "it runs");
    let done = put(&store, &ended_run(&name, &running, vec![b'a'; MEDIUM])).await.record;
    let purge = done.purge_at.expect("it ends").as_secs();
    assert_eq!(ttls("r").await, [Some(purge + 3600)]);
    assert_eq!(ttls("b#").await, [Some(purge + 3600 + 24 * 3600); 2]);
    let dead = TestRecord::fresh();
    let mut letter = Draft { purge_in: Some(MINUTE), ..draft(&dead, State::Retryable) };
    letter.flags.dead_letter = true;
    put(&store, &insert(&dead, letter)).await;
    let mut all = ttls("r").await;
    all.sort_unstable();
    assert_eq!(all, [None, Some(purge + 3600)], "a dead letter waits for an operator");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_parts_of_a_dead_letter_have_no_time_to_live() {
    let server = DynamoDb::shared();
    let store = open(&server, &NodeClock::default()).await;
    let has_ttls =
        async || items(&server, "b#").await.iter().map(|part| part.contains_key("ttl_s")).collect::<Vec<_>>();
    let name = TestRecord::fresh();
    let running = put(&store, &insert(&name, draft(&name, State::InProgress))).await.record;
    let finish = ended_run(&name, &running, vec![b'a'; MEDIUM]);
    let done = put(&store, &finish).await;
    assert_eq!(has_ttls().await, [true; 2]);
    // A late answer contradicts the response that is stored.
    let late = replace(&done.record, dead_letter(&name));
    let letter = put(&store, &telling(late, HistoryKind::LateAnswer, "another answer")).await;
    assert_eq!((has_ttls().await, letter.response), (vec![false; 2], done.response));
    // The reply to the finish was lost, and it is sent again.
    assert!(matches!(commit(&store, &finish).await, Commit::Conflict(Some(_))));
    assert_eq!(has_ttls().await, [false; 2], "a resend gives none");

    let other = TestRecord::fresh();
    let mut born = insert(&other, dead_letter(&other));
    born.response = Some(response(vec![b'b'; MEDIUM]));
    put(&store, &born).await;
    assert_eq!(has_ttls().await, [false; 4], "it was a dead letter from the start");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_record_is_read_without_parts_that_are_gone() {
    let server = DynamoDb::shared();
    let clock = NodeClock::default();
    let store = open(&server, &clock).await;
    let name = TestRecord::fresh();
    let running = put(&store, &insert(&name, draft(&name, State::InProgress))).await.record;
    let done = put(&store, &ended_run(&name, &running, vec![b'a'; MEDIUM])).await.record;
    delete_parts(&server).await;
    store.load(name.id).await.expect_err("a response that is still replayed must be whole");
    clock.advance(MINUTE + SKEW_MAX);
    let expired = load(&store, name.id).await.expect("it is there");
    assert_eq!((expired.record, expired.response), (done, None));
}

/// Returns a completed record that waits for an operator, with instants like those of [`ended_run`].
fn dead_letter(name: &TestRecord) -> Draft {
    let mut draft =
        Draft { expires_in: Some(MINUTE), purge_in: Some(MINUTE), ..draft(name, State::Completed) };
    draft.flags.dead_letter = true;
    draft.note.status = Some(201);
    draft
}

/// Deletes all parts of bodies, as time to live does.
async fn delete_parts(server: &DynamoDb) {
    let client = aws_sdk_dynamodb::Client::new(&sdk_config(server));
    for mut part in items(server, "b#").await {
        part.retain(|name, _| ["i", "k"].contains(&name.as_str()));
        client.delete_item().table_name("ibid").set_key(Some(part)).send().await.expect("it is deleted");
    }
}

/// Returns the end of a run with this response, for a minute.
fn ended_run(name: &TestRecord, running: &Record, body: impl Into<Bytes>) -> Change {
    let mut draft =
        Draft { expires_in: Some(MINUTE), purge_in: Some(MINUTE), ..draft(name, State::Completed) };
    draft.note.status = Some(201);
    let mut finish = replace(running, draft);
    finish.response = Some(response(body));
    finish.clears_bodies = true;
    finish
}

/// Returns how many parts of bodies are in the table of [`open`].
pub(crate) async fn part_count(server: &DynamoDb) -> usize {
    items(server, "b#").await.len()
}
