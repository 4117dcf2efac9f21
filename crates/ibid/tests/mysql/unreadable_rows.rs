//! A record that this program can't read, because its policy is lost or a later ibid wrote it: it hides no other record, and
//! is never taken for absent.

use ibid_core::record::State;
use ibid_core::store::RecordFilter;
use ibid_testkit::contract::{SHORT, TICK};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_can_not_be_read_hides_no_other() {
    let server = MariaDb::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(begin_some(&store, 1, SHORT).await[0].id);
    }
    tokio::time::sleep(TICK).await;
    server.sql(&database, &format!("update ibid_record set policy = 0 where id = x'{}'", ids[0]));
    // It is the first one, and fills a page of one.
    for limit in [100, 1, 3] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = store.due(State::InProgress, after, limit).await.expect("due is answered");
            assert!(!page.items.is_empty() || page.next.is_none(), "an unreadable record is no page");
            found.extend(page.items.into_iter().map(|stored| stored.record.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, ids[1..], "{limit} at a time");
    }
    let browse = store.browse().expect("it can be browsed");
    let listed = browse.list(RecordFilter::default()).await.expect("a list").items;
    assert_eq!(listed.len(), 3);
    assert!(!store.load(ids[0]).await.expect_err("it can't be read").is_transient());
    // Its key is taken, on both paths.
    for hot_path in [true, false] {
        let store = open_with(&server, &database, |options| options.hot_path = hot_path).await;
        let mut begin = fresh(&TestRecord::fresh(), LONG);
        begin.id = ids[0];
        let error = store.commit(Arc::new(begin), None).await.expect_err("it is never taken for absent");
        assert!(!error.is_transient() && error.is_unwritten(), "{error:?}");
    }
}
