//! The invariants that hold after every fault: each key makes one payment, each payment settles and is charged once, and
//! its row exists exactly if its response is stored.

use std::net::SocketAddr;

use futures_util::future::join_all;

use crate::clients::CompletedRequest;
use crate::fixture::DatabaseAndProcessor;

impl DatabaseAndProcessor {
    /// Asserts that payments and stored responses belong together, one to one.
    ///
    /// This holds at every instant, also while nodes run: one statement sees one snapshot.
    pub(crate) async fn assert_payments_match_responses(&self) {
        // 3 is `completed`.
        let orphans = self
            .texts(
                "select 'a payment without its response: ' || p.id from payment p where not exists \
                   (select 1 from ibid_record r where r.id = p.record_id and r.state = 3) \
                 union all \
                 select 'a response without its payment: ' || r.key from ibid_record r \
                 where r.path = '/payments' and r.state = 3 and not exists \
                   (select 1 from payment p where p.record_id = r.id)",
            )
            .await;
        assert_eq!(orphans, [""; 0]);
    }

    /// Waits until nothing is left to do, and asserts that each request was executed and charged exactly once.
    pub(crate) async fn assert_each_ran_once(&self, node: SocketAddr, mut completed: Vec<CompletedRequest>) {
        // No record and no effect is open: 3 is `completed` for a record and `done` for an effect.
        self.wait_for_rows("select r.key from ibid_record r where r.state <> 3", &[]).await;
        self.wait_for_rows("select name from ibid_effects where state <> 'done'", &[]).await;
        self.wait_for_rows("select id from payment where status <> 'succeeded' or charge_id is null", &[])
            .await;
        self.wait_for_rows("select id from ride where status <> 'succeeded' or receipt_id is null", &[])
            .await;
        self.assert_payments_match_responses().await;
        join_all(completed.iter_mut().map(CompletedRequest::assert_late_responses_agree)).await;
        join_all(completed.iter().map(|request| request.assert_replayed(node))).await;

        let mut ids: Vec<String> = completed.iter().map(CompletedRequest::id).collect();
        ids.sort();
        let mut rows = self.texts("select id from payment union all select id from ride").await;
        rows.sort();
        assert_eq!(rows, ids, "rows and responses");
        assert_eq!(self.charged_references().await, ids, "charges and responses");
        let records = self.texts("select r.key from ibid_record r").await;
        assert_eq!(records.len(), completed.len(), "one record for each key: {records:?}");
        let effects = self.texts("select name from ibid_effects").await;
        let payments = completed.iter().filter(|completed| completed.request.target == "/payments");
        assert_eq!(effects.len(), payments.count());
    }
}
