//! What must be true of a database and a processor after anything: each key is one payment, each payment is charged once
//! and settles, and its row stands exactly when its answer does.

use std::net::SocketAddr;

use futures_util::future::join_all;

use crate::clients::Told;
use crate::world::World;

impl World {
    /// True at every instant, whatever is going on: one statement sees one snapshot.
    pub(crate) async fn has_a_payment_exactly_for_each_answer(&self) {
        // 3 is `completed`.
        let odd = self
            .texts(
                "select 'a payment without its answer: ' || p.id from payment p where not exists \
                   (select 1 from ibid_record r where r.id = p.record_id and r.state = 3) \
                 union all \
                 select 'an answer without its payment: ' || r.key from ibid_record r \
                 where r.path = '/payments' and r.state = 3 and not exists \
                   (select 1 from payment p where p.record_id = r.id)",
            )
            .await;
        assert_eq!(odd, [""; 0]);
    }

    /// True in the end.
    pub(crate) async fn has_kept_its_promise(&self, node: SocketAddr, mut told: Vec<Told>) {
        // Nothing is left that somebody would do something about: 3 is `completed`, and `done`.
        self.comes_to("select key from ibid_record where state <> 3", &[]).await;
        self.comes_to("select name from ibid_effect where state <> 3", &[]).await;
        self.comes_to("select id from payment where status <> 'succeeded' or charge_id is null", &[]).await;
        self.comes_to("select id from ride where status <> 'succeeded' or receipt_id is null", &[]).await;
        self.has_a_payment_exactly_for_each_answer().await;
        join_all(told.iter_mut().map(Told::hears_the_rest)).await;
        join_all(told.iter().map(|told| told.is_told_again(node))).await;

        let mut ids: Vec<String> = told.iter().map(Told::id).collect();
        ids.sort();
        let mut kept = self.texts("select id from payment union all select id from ride").await;
        kept.sort();
        assert_eq!(kept, ids, "rows and answers");
        assert_eq!(self.charged().await, ids, "charges and answers");
        let records = self.texts("select key from ibid_record").await;
        assert_eq!(records.len(), told.len(), "one record for each key: {records:?}");
        let effects = self.texts("select name from ibid_effect").await;
        assert_eq!(effects.len(), told.iter().filter(|told| told.wish.target == "/payments").count());
    }
}
