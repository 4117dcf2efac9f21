//! Bodies that are stored apart from their record: requests, and results of phases.

use bytes::Bytes;
use ibid_core::change::{BodyKind, Change, Draft, LoadedBody, StoredBody};
use ibid_core::record::{Nonce, Record, State};
use ibid_core::store::Store;

use super::{StoreUnderTest, TestRecord, draft, expect_conflict, insert, nonce, put, replace};

/// All bodies of a record's generation are loaded, and none of another generation.
pub async fn bodies_are_found_by_their_generation(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let begin = insert(&name, draft(&name, State::InProgress));
    let begin = keeping(begin, [(BodyKind::Request, "asked"), (BodyKind::Phase(1), "one")]);
    let first = put(&*store, &begin).await.record;
    let next = replace(&first, draft(&name, State::InProgress));
    put(&*store, &keeping(next, [(BodyKind::Phase(2), ""), (BodyKind::Phase(u16::MAX), "last")])).await;
    let expected = [
        (BodyKind::Request, "asked"),
        (BodyKind::Phase(1), "one"),
        (BodyKind::Phase(2), ""),
        (BodyKind::Phase(u16::MAX), "last"),
    ];
    assert_eq!(bodies(&*store, &first).await, texts(expected), "all that was kept is found");
    let other = Record { birth: Nonce(first.birth.0 ^ 1), ..Record::clone(&first) };
    assert_eq!(bodies(&*store, &other).await, [], "another generation");
    let absent = Record { id: TestRecord::fresh().id, ..Record::clone(&first) };
    assert_eq!(bodies(&*store, &absent).await, [], "a record that does not exist");
}

/// A record that is accepted again stores its request again.
pub async fn a_body_replaces_the_one_of_its_kind(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let begin = insert(&name, draft(&name, State::InProgress));
    let begin = keeping(begin, [(BodyKind::Request, "first"), (BodyKind::Phase(1), "one")]);
    let first = put(&*store, &begin).await.record;
    let next = keeping(replace(&first, draft(&name, State::Pending)), [(BodyKind::Request, "second")]);
    put(&*store, &next).await;
    let expected = [(BodyKind::Request, "second"), (BodyKind::Phase(1), "one")];
    assert_eq!(bodies(&*store, &first).await, texts(expected));
}

/// The change that clears bodies may store others, which stay. A new generation leaves nothing of the old one.
pub async fn cleared_bodies_are_gone(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let begin = keeping(insert(&name, draft(&name, State::InProgress)), [(BodyKind::Request, "asked")]);
    let first = put(&*store, &begin).await.record;
    let mut clearing = replace(&first, draft(&name, State::Completed));
    clearing.clears_bodies = true;
    let cleared = put(&*store, &clearing).await.record;
    assert_eq!(bodies(&*store, &first).await, [], "with the write that ends the need for them");

    let again = keeping(replace(&cleared, draft(&name, State::Completed)), [(BodyKind::Phase(1), "one")]);
    let old = put(&*store, &again).await.record;
    let nonce = nonce();
    let mut rebirth = keeping(replace(&old, draft(&name, State::InProgress)), [(BodyKind::Request, "new")]);
    rebirth.draft = rebirth.draft.map(|draft| Draft { birth: nonce, owner: nonce, ..draft });
    (rebirth.nonce, rebirth.clears_bodies) = (nonce, true);
    let new = put(&*store, &rebirth).await.record;
    assert_eq!(bodies(&*store, &new).await, texts([(BodyKind::Request, "new")]));
    assert_eq!(bodies(&*store, &old).await, [], "what belonged to the generation before");
}

/// A change that lost its race leaves the winner's bodies alone.
pub async fn a_refused_change_stores_no_body(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let begin = keeping(insert(&name, draft(&name, State::InProgress)), [(BodyKind::Request, "asked")]);
    let first = put(&*store, &begin).await.record;
    put(&*store, &replace(&first, draft(&name, State::InProgress))).await;
    let late = keeping(replace(&first, draft(&name, State::InProgress)), [(BodyKind::Phase(1), "late")]);
    expect_conflict(&*store, &late, "the record has changed").await;
    let mut clearing = replace(&first, draft(&name, State::Completed));
    clearing.clears_bodies = true;
    expect_conflict(&*store, &clearing, "the record has changed").await;
    assert_eq!(bodies(&*store, &first).await, texts([(BodyKind::Request, "asked")]));
}

/// A body has any bytes, and more of them than fit into a page or a packet of a database.
pub async fn a_large_body_comes_back_whole(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let large: Bytes = (0..LARGE).map(|n| (n % 251) as u8).collect();
    let mut begin = insert(&name, draft(&name, State::InProgress));
    begin.bodies.push(StoredBody { kind: BodyKind::Request, data: large.clone() });
    let record = put(&*store, &begin).await.record;
    let read = bodies(&*store, &record).await;
    assert!(read == [LoadedBody { kind: BodyKind::Request.code(), data: large }], "{} bodies", read.len());
}

fn keeping<const N: usize>(mut change: Change, bodies: [(BodyKind, &'static str); N]) -> Change {
    change
        .bodies
        .extend(bodies.map(|(kind, text)| StoredBody { kind, data: Bytes::from_static(text.as_bytes()) }));
    change
}

fn texts<const N: usize>(bodies: [(BodyKind, &'static str); N]) -> Vec<LoadedBody> {
    let loaded = |(kind, text): (BodyKind, &'static str)| LoadedBody {
        kind: kind.code(),
        data: Bytes::from_static(text.as_bytes()),
    };
    bodies.map(loaded).to_vec()
}

/// Returns the bodies of the record's generation, in the order of their codes.
async fn bodies(store: &dyn Store, record: &Record) -> Vec<LoadedBody> {
    let bodies = store.bodies().expect("the suite runs on a store with bodies");
    let mut bodies = bodies.bodies(record.id, record.birth).await.expect("bodies are read");
    bodies.sort();
    bodies
}

/// Bytes of a large body: more than one page of any database, less than the smallest limit of a store's rows (DynamoDB's 400 kB,
/// less what the record takes).
const LARGE: usize = 300_000;
