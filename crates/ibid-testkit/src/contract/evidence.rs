//! Evidence from outside: stored once per event, used up by the change that it led to, removed after its time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ibid_core::change::Commit;
use ibid_core::evidence::{
    EffectRef, EventName, Evidence, EvidenceQuery, EvidenceStore, EvidenceSubject, StoredEvidence,
};
use ibid_core::machine::{AttemptResponse, Observation};
use ibid_core::record::State;
use ibid_core::store::Store;

use super::{
    LONG, SHORT, StoreUnderTest, TICK, TestRecord, commit, draft, expect_conflict, insert, nonce, put,
    replace, response,
};

/// However often and by whichever sender an event is delivered, the first delivery stays unchanged.
pub async fn an_event_counts_once(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let first = Evidence { owner: Some(nonce()), ..evidence_about(&name, executed_observation()) };
    let (kept, new) = insert_evidence(&*store, &first).await;
    assert!(new && kept.open, "the event is new");
    assert_eq!(kept.evidence, Evidence { age: Duration::ZERO, ..first.clone() }, "it is stored unchanged");
    subject.advance(TICK).await;
    let again = Evidence { owner: None, what: Observation::NotExecuted, ..first.clone() };
    assert_eq!(insert_evidence(&*store, &again).await, (kept.clone(), false), "the first one counts");
    let elsewhere = EventName { source: "other".into(), ..first.name.clone() };
    let (other, new) = insert_evidence(&*store, &Evidence { name: elsewhere, ..first }).await;
    assert!(new && other.open, "each source has its own events");
}

/// The store's clock says when evidence arrived, and `as_of` is its age before that.
pub async fn evidence_speaks_of_its_arrival_less_its_age(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let now = async || {
        let name = TestRecord::fresh();
        put(&*store, &insert(&name, draft(&name, State::Completed))).await.record.created_at
    };
    let before = now().await;
    let aged = Evidence { age: LONG, ..evidence_about(&TestRecord::fresh(), executed_observation()) };
    let (kept, _) = insert_evidence(&*store, &aged).await;
    let after = now().await;
    let arrived = kept.as_of.after(LONG);
    assert!(before <= arrived && arrived <= after, "{before:?} {arrived:?} {after:?}");
}

/// Open evidence is found by its record, and all of it page by page.
pub async fn open_evidence_is_found_by_record_and_page_by_page(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let (one, other) = (TestRecord::fresh(), TestRecord::fresh());
    let mut stored = Vec::new();
    for (name, what) in
        [(&one, executed_observation()), (&other, Observation::NotExecuted), (&one, Observation::NotExecuted)]
    {
        stored.push(insert_evidence(&*store, &evidence_about(name, what)).await.0);
    }
    let of = async |name: &TestRecord, limit| open(&*store, EvidenceQuery::Of(name.id), limit).await;
    assert_eq!(of(&one, 10).await, [stored[0].clone(), stored[2].clone()], "oldest first");
    assert_eq!(of(&one, 1).await, [stored[0].clone()], "no more than asked");
    assert_eq!(of(&other, 10).await, [stored[1].clone()], "each record by itself");
    assert!(of(&TestRecord::fresh(), 10).await.is_empty());
    // Other evidence may be in this store.
    let ours = async || {
        let all = all_open(&*store).await;
        all.into_iter().filter(|one| stored.contains(one)).collect::<Vec<_>>()
    };
    assert_eq!(ours().await, stored, "page by page, none lost and none repeated");
    let names = stored[..2].iter().map(|one| one.evidence.name.clone()).collect();
    evidence(&*store).dismiss_evidence(names).await.expect("it is dismissed");
    assert_eq!(ours().await, stored[2..], "what is dismissed is not open");
    assert_eq!(of(&one, 10).await, stored[2..]);
    let (known, new) =
        insert_evidence(&*store, &evidence_named(&one, executed_observation(), &stored[0].evidence.name))
            .await;
    assert!(!new && !known.open, "its event stays known");
}

/// The store has no row for an effect: its evidence is found by the provider's name for the effect.
pub async fn evidence_on_an_effect_is_found_by_the_providers_name_for_it(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let id = format!("ch_{:016x}", nonce().0);
    let names = [
        EffectRef::DownstreamKey(id.clone()),
        EffectRef::ProviderId { kind: "charge".to_owned(), id: id.clone() },
        EffectRef::ProviderId { kind: "refund".to_owned(), id },
    ];
    let mut stored = Vec::new();
    for (at, what) in
        names.iter().zip([executed_observation(), Observation::NotExecuted, executed_observation()])
    {
        let event = Evidence {
            about: EvidenceSubject::Effect(at.clone()),
            ..evidence_about(&TestRecord::fresh(), what)
        };
        stored.push(insert_evidence(&*store, &event).await.0);
        assert_eq!(stored.last().map(|stored| &stored.evidence), Some(&event), "it is stored unchanged");
    }
    for (at, stored) in names.iter().zip(&stored) {
        assert_eq!(
            open(&*store, EvidenceQuery::Of(at.id()), 10).await,
            std::slice::from_ref(stored),
            "{at:?}"
        );
    }
    let all = all_open(&*store).await;
    assert!(stored.iter().all(|one| all.contains(one)), "among all others");
}

/// A change that is refused uses up nothing.
pub async fn evidence_is_used_up_with_its_change_or_not_at_all(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let name = TestRecord::fresh();
    let unknown = put(&*store, &insert(&name, draft(&name, State::Unknown))).await.record;
    let moved = put(&*store, &replace(&unknown, draft(&name, State::Unknown))).await.record;
    let (kept, _) = insert_evidence(&*store, &evidence_about(&name, executed_observation())).await;
    let (other, _) = insert_evidence(&*store, &evidence_about(&name, executed_observation())).await;
    let mut late = replace(&unknown, draft(&name, State::Completed));
    late.uses = Some(kept.evidence.name.clone());
    expect_conflict(&*store, &late, "the record had moved").await;
    let open_now = async || open(&*store, EvidenceQuery::Of(name.id), 10).await;
    assert_eq!(open_now().await, [kept.clone(), other.clone()], "a refused change used evidence");
    let mut settling = replace(&moved, draft(&name, State::Completed));
    settling.uses = Some(kept.evidence.name.clone());
    assert!(matches!(commit(&*store, &settling).await, Commit::Done(_)));
    assert_eq!(open_now().await, [other], "the one that led to it is used up, and no other");
    let (known, new) = insert_evidence(&*store, &kept.evidence).await;
    assert!(!new && !known.open, "a used event is known when it is delivered again");
    // Sent again after a lost reply, it is refused and changes nothing.
    expect_conflict(&*store, &settling, "it was written before").await;
}

/// Used evidence stays known for longer, because it must not count again.
pub async fn evidence_goes_after_its_time(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    while evidence(&*store).purge_evidence(100).await.expect("a purge succeeds") > 0 {}
    let name = TestRecord::fresh();
    let unknown = put(&*store, &insert(&name, draft(&name, State::Unknown))).await.record;
    let short = async || {
        let short = evidence_about(&name, Observation::NotExecuted);
        evidence(&*store).insert_evidence(short, SHORT).await.expect("it is kept").0
    };
    let (used, dismissed, idle) = (short().await, short().await, short().await);
    let (long, _) = insert_evidence(&*store, &evidence_about(&name, executed_observation())).await;
    let mut settling = replace(&unknown, draft(&name, State::Retryable));
    settling.uses = Some(used.evidence.name.clone());
    assert!(matches!(commit(&*store, &settling).await, Commit::Done(_)));
    evidence(&*store).dismiss_evidence(vec![dismissed.evidence.name.clone()]).await.expect("it is dismissed");
    subject.advance(TICK).await;
    assert_eq!(evidence(&*store).purge_evidence(0).await.expect("a purge succeeds"), 0, "zero means none");
    assert_eq!(evidence(&*store).purge_evidence(1).await.expect("a purge succeeds"), 1, "no more than asked");
    assert_eq!(
        evidence(&*store).purge_evidence(10).await.expect("a purge succeeds"),
        1,
        "dismissed and idle alike"
    );
    for (kept, gone) in [(&used, false), (&dismissed, true), (&idle, true), (&long, false)] {
        assert_eq!(insert_evidence(&*store, &kept.evidence).await.1, gone, "{kept:?}");
    }
}

/// An event is known until a purge removes it, however late the purge is. After that the name is free: nothing of the old
/// evidence is left, and the next purge leaves the new evidence alone.
pub async fn a_purged_event_may_be_about_another_record(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let purge = async || evidence(&*store).purge_evidence(100).await.expect("a purge succeeds");
    let (one, other) = (TestRecord::fresh(), TestRecord::fresh());
    let old = evidence_about(&one, Observation::NotExecuted);
    let (stored, new) =
        evidence(&*store).insert_evidence(old.clone(), SHORT).await.expect("evidence is kept");
    assert!(new, "the event is new");
    subject.advance(TICK).await;
    let next = evidence_named(&other, executed_observation(), &old.name);
    assert_eq!(insert_evidence(&*store, &next).await, (stored, false), "the purge is late");
    while purge().await > 0 {}
    assert!(open(&*store, EvidenceQuery::Of(one.id), 10).await.is_empty(), "the old evidence is gone");
    let (kept, new) = insert_evidence(&*store, &next).await;
    assert!(new && kept.open, "the name is free");
    assert_eq!(kept.evidence, next, "nothing of the old evidence is left");
    assert_eq!(purge().await, 0, "the new evidence has its own time");
    assert_eq!(open(&*store, EvidenceQuery::Of(other.id), 10).await, std::slice::from_ref(&kept));
    assert_eq!(insert_evidence(&*store, &old).await, (kept, false), "it counts once");
    evidence(&*store).dismiss_evidence(vec![old.name]).await.expect("it is dismissed");
    assert!(open(&*store, EvidenceQuery::Of(other.id), 10).await.is_empty(), "it is found by its name");
}

/// Of many concurrent deliveries, one is the first.
pub async fn of_many_deliveries_of_an_event_one_is_new(subject: &dyn StoreUnderTest) {
    let store = subject.store();
    let event = evidence_about(&TestRecord::fresh(), executed_observation());
    let deliveries = (0..50).map(|_| {
        let (store, event): (Arc<dyn Store>, _) = (store.clone(), event.clone());
        tokio::spawn(async move { evidence(&*store).insert_evidence(event, LONG).await.expect("it is kept") })
    });
    let results: Vec<(StoredEvidence, bool)> =
        join_all(deliveries).await.into_iter().map(|result| result.expect("no panic")).collect();
    assert_eq!(results.iter().filter(|(_, new)| *new).count(), 1, "one is the first");
    assert!(results.iter().all(|(stored, _)| *stored == results[0].0), "all get the same one");
}

fn executed_observation() -> Observation {
    Observation::Executed(AttemptResponse {
        status: 402,
        retry_after: false,
        kept: Some(response("an answer")),
        provider_id: Some("ch_1".to_owned()),
        proof: None,
    })
}

fn evidence_about(name: &TestRecord, what: Observation) -> Evidence {
    let event = EventName { source: "psp".to_owned(), event: format!("evt_{:016x}", nonce().0) };
    evidence_named(name, what, &event)
}

fn evidence_named(name: &TestRecord, what: Observation, event: &EventName) -> Evidence {
    Evidence {
        name: event.clone(),
        about: EvidenceSubject::Record(name.id),
        owner: None,
        what,
        age: Duration::ZERO,
    }
}

async fn insert_evidence(store: &dyn Store, event: &Evidence) -> (StoredEvidence, bool) {
    evidence(store).insert_evidence(event.clone(), LONG).await.expect("evidence is kept")
}

async fn open(store: &dyn Store, which: EvidenceQuery, limit: u32) -> Vec<StoredEvidence> {
    evidence(store).open_evidence(which, None, limit).await.expect("evidence is found").items
}

/// Returns all open evidence, read in pages of two.
async fn all_open(store: &dyn Store) -> Vec<StoredEvidence> {
    let (mut all, mut after) = (Vec::new(), None);
    // A cursor that does not move must not make the suite loop forever.
    for _ in 0..1000 {
        let page =
            evidence(store).open_evidence(EvidenceQuery::All, after, 2).await.expect("evidence is found");
        assert!(page.items.len() <= 2, "no more than asked");
        all.extend(page.items);
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
    panic!("the evidence has no end");
}

/// Returns the store of evidence, which the suite was started with.
fn evidence(store: &dyn Store) -> &dyn EvidenceStore {
    store.evidence().expect("the suite runs on a store of evidence")
}
