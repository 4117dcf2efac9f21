//! All inside, in a process that is killed midway: before its one commit, none of its work is visible.
//!
//! The process is this test binary with a failpoint armed.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use ibid::transaction::TxError;

use super::harness::{NodeOnDatabase, answer, is_stored, pay_and_charge};
use crate::adapters::Adapter;
use crate::adapters::databases::{SqlxMysqlPools, SqlxPostgresPools, SqlxSqlitePools, TestDatabase};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_leaves_all_or_nothing_in_a_file() {
    all_or_nothing(NodeOnDatabase::<SqlxSqlitePools>::new(TestDatabase::sqlite()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_leaves_all_or_nothing_on_a_server() {
    all_or_nothing(NodeOnDatabase::<SqlxPostgresPools>::new(TestDatabase::postgres()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_leaves_all_or_nothing_on_mysql() {
    all_or_nothing(NodeOnDatabase::<SqlxMysqlPools>::new(TestDatabase::mariadb()).await).await;
}

/// State after the process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// The process was killed, and left nothing.
    Nothing,
    /// The process was killed after its commit.
    All,
    /// The process survived, learned of the fault and retried.
    Survived,
}

const HITS: [(&str, Left); 8] = [
    ("reserve.after=1*return(kill)", Left::Nothing),
    ("enqueue.after=1*return(kill)", Left::Nothing),
    ("finish.before=1*return(kill)", Left::Nothing),
    ("finish.after=1*return(kill)", Left::All),
    ("reserve.after=1*return(error)", Left::Survived),
    ("enqueue.after=1*return(error)", Left::Survived),
    ("finish.before=1*return(error)", Left::Survived),
    ("finish.after=1*return(lost)", Left::Survived),
];

async fn all_or_nothing<A: Adapter>(world: NodeOnDatabase<A>) {
    for (hit, left) in HITS {
        let ended = tokio::task::block_in_place(|| process(&world.test_db, hit));
        if left == Left::Survived {
            assert!(ended.status.success(), "{hit}: {ended:?}");
        } else {
            assert_eq!(ended.status.signal(), Some(9), "{hit}: {ended:?}");
        }
        if left == Left::Nothing {
            world.nothing_of(hit).await;
            assert!(world.record(hit).await.is_none(), "{hit}");
            // The next request does not have to wait for a lease to lapse.
            let mut inside = world.begin_inside(hit).await;
            assert_eq!(inside.number(), 1, "{hit}");
            pay_and_charge(&mut inside, hit, "the next").await.unwrap();
            assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201), "{hit}");
        }
        assert_eq!((world.payments(hit).await, world.effects(hit).await.len()), (1, 1), "{hit}");
        assert_eq!(world.paid_by(hit, "the next").await, left == Left::Nothing, "{hit}");
        assert_eq!(world.replay(hit).await, answer(201), "{hit}");
    }
}

fn process(test_db: &TestDatabase, hit: &str) -> Output {
    let mut process = Command::new(std::env::current_exe().expect("this test's binary"));
    process.args(["--ignored", "--exact", "--nocapture", "transaction::crash::one_request"]);
    process.env(AT, &test_db.at).env("IBID_FAILPOINTS", hit);
    process.output().expect("it starts")
}

/// Not a test by itself: the tests above run it in a separate process. The key is the name of the armed failpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it is killed by other tests"]
async fn one_request() {
    let at = std::env::var(AT).expect("a database");
    if at.starts_with("postgres:") {
        run_request(NodeOnDatabase::<SqlxPostgresPools>::open_existing(TestDatabase::at(at)).await).await;
    } else if at.starts_with("mysql:") {
        run_request(NodeOnDatabase::<SqlxMysqlPools>::open_existing(TestDatabase::at(at)).await).await;
    } else {
        run_request(NodeOnDatabase::<SqlxSqlitePools>::open_existing(TestDatabase::at(at)).await).await;
    }
}

async fn run_request<A: Adapter>(world: NodeOnDatabase<A>) {
    let key = std::env::var("IBID_FAILPOINTS").expect("something happens");
    for _ in 0..TRIES_MAX {
        match try_once(&world, &key).await {
            Err(error) if error.is_retryable() => {}
            ended => return ended.expect("it is stored"),
        }
    }
    panic!("others are always in the way");
}

async fn try_once<A: Adapter>(world: &NodeOnDatabase<A>, key: &str) -> Result<(), TxError> {
    let mut inside = world.begin_inside(key).await;
    pay_and_charge(&mut inside, key, "the first").await?;
    assert!(is_stored(&inside.finish(answer(201)).await?, 201));
    Ok(())
}

const AT: &str = "IBID_TEST_AT";

/// One try meets the fault, and there is no other session.
const TRIES_MAX: usize = 2;
