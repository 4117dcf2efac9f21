//! Upkeep on a record that another session has locked: it waits for the next round, and the others do not.

use ibid::Ibid;
use ibid::outcome::Begin;
use ibid::upkeep::reconcile_once;
use ibid_core::policy::{Policy, Reconcile};
use ibid_core::record::ErrorCode;

use super::*;
use crate::request_fixture::{FindsAll, ask, takes_over_at_start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_record_holds_up_no_lookup_of_another() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let node = Ibid::start(store.clone(), takes_over_at_start()).await.expect("it starts");
    let policy = Policy::default().with(|policy| policy.reconcile = Some(Reconcile::new(SECOND, 5)));
    for key in ["locked", "free"] {
        let begin = node.begin(ask(&node, "shop", key, policy.clone())).await.expect("the store answers");
        let Begin::Run(attempt) = begin else { panic!("it is new") };
        drop(attempt.unknown(ErrorCode::Broken).await);
    }
    pass(&server, &database, Duration::from_secs(3600));
    let stranger = stranger(&server, &database).await;
    let lock = "begin; select from ibid_record where key = 'locked' for update";
    stranger.batch_execute(lock).await.expect("the row is held");
    let lookups = Ibid::for_upkeep(store, takes_over_at_start());
    lookups.reconcile_with(Arc::new(FindsAll));
    // The other transaction stays open, so an end of the round means that it did not wait for it.
    let round = reconcile_once(&lookups).await.expect("the store answers");
    assert_eq!((round.asked, round.settled), (2, 1));
    stranger.batch_execute("rollback").await.expect("the stranger leaves");
    assert_eq!(reconcile_once(&lookups).await.expect("the store answers").settled, 1);
}
