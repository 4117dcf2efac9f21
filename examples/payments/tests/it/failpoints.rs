//! Every place where a node can be made to die, fail, stop, doze or lose a reply, on both databases, and what must be
//! true afterwards whatever it was.
//!
//! The node that something happens to has its failpoint armed for one hit. Clients send their keys again until they have
//! an answer; who was killed is followed by another node, and who stopped comes back when another has done its work.

use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{join, join_all};
use ibid_testkit::postgres::Postgres;
use tokio::sync::watch;

use crate::armed::Armed;
use crate::clients::{Told, Wish, carried_out, wishes};
use crate::harness::Program;
use crate::world::{Node, Place, World};

use self::matrix::{Action, Case, Proof};

pub(crate) use self::matrix::places;

mod keyless;
mod keyless_rides;
mod matrix;

#[tokio::test(flavor = "multi_thread")]
async fn kills_and_pauses_on_sqlite() {
    on_sqlite(&[Action::Kill, Action::Stop]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_lost_replies_and_dozes_on_sqlite() {
    on_sqlite(&[Action::Error, Action::Lost, Action::Doze]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_and_pauses_on_postgres() {
    on_postgres(&[Action::Kill, Action::Stop]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_lost_replies_and_dozes_on_postgres() {
    on_postgres(&[Action::Error, Action::Lost, Action::Doze]).await;
}

async fn on_sqlite(actions: &[Action]) {
    all_on_sqlite(CASES_AT_ONCE, matrix::cases(actions), run).await;
}

async fn on_postgres(actions: &[Action]) {
    all_on_postgres(CASES_AT_ONCE, matrix::cases(actions), run).await;
}

async fn all_on_sqlite<C, F>(
    at_once: usize,
    cases: Vec<C>,
    run: impl Fn(C, Place) -> F + Copy + Send + 'static,
) where
    C: Copy + Debug + Send + 'static,
    F: Future<Output = usize> + Send,
{
    all(at_once, cases, run, || Place::sqlite).await;
}

async fn all_on_postgres<C, F>(
    at_once: usize,
    cases: Vec<C>,
    run: impl Fn(C, Place) -> F + Copy + Send + 'static,
) where
    C: Copy + Debug + Send + 'static,
    F: Future<Output = usize> + Send,
{
    let server = Arc::new(Postgres::shared());
    let lane = || {
        let (server, database) = (server.clone(), server.create_database());
        move || {
            // Cheaper than another database, and nobody of the case before is left.
            server.sql(&database, "drop schema public cascade; create schema public");
            Place::Database(server.clone(), database.clone())
        }
    };
    all(at_once, cases, run, lane).await;
}

/// Some at once, each in a place of its own: most of a case is waiting for a lease to lapse.
async fn all<C, F, P>(
    at_once: usize,
    cases: Vec<C>,
    run: impl Fn(C, Place) -> F + Copy + Send + 'static,
    lane: impl Fn() -> P,
) where
    C: Copy + Debug + Send + 'static,
    F: Future<Output = usize> + Send,
    P: Fn() -> Place + Send + 'static,
{
    let count = cases.len();
    let cases = Arc::new(Mutex::new(cases.into_iter()));
    let lanes = (0..at_once).map(|_| {
        let (cases, place) = (cases.clone(), lane());
        tokio::spawn(async move {
            let next = || cases.lock().expect("nobody panics with it").next();
            let mut requests = 0;
            while let Some(case) = next() {
                println!("{case:?} …");
                requests += run(case, tokio::task::block_in_place(&place)).await;
                println!("{case:?} is over");
            }
            requests
        })
    });
    let requests = join_all(lanes).await.into_iter().map(|lane| lane.expect("the promise is kept"));
    let requests: usize = requests.sum();
    println!("{count} cases, {requests} requests, each of them one row and one charge");
}

/// One case. How many requests were carried out.
async fn run(case: Case, place: Place) -> usize {
    let in_a_file = matches!(place, Place::Sqlite(_));
    let world = World::new(place, "");
    match case.action {
        Action::Kill => killed(case, &world).await,
        Action::Stop if !in_a_file => stopped(case, &world, wishes(3, case.rides())).await,
        Action::Stop if case.holds_the_file() => stopped_with_the_file(case, &world).await,
        Action::Stop => stopped_outside_a_write(case, world).await,
        Action::Error | Action::Lost | Action::Doze => lives_on(case, &world).await,
    }
}

async fn killed(case: Case, world: &World) -> usize {
    let mut armed = Armed::start(world, LEASE, &case.failpoint(0, case.rides())).await;
    let (turn_to, node) = watch::channel(armed.node.0.address);
    let breaking = async {
        armed.dies().await;
        world.has_a_payment_exactly_for_each_answer().await;
        world.lapse().await;
        let next = world.node(LEASE);
        turn_to.send_replace(next.0.address);
        next
    };
    let (told, next) = join(carried_out(wishes(3, case.rides()), &node), breaking).await;
    let requests = told.len();
    world.has_kept_its_promise(next.0.address, told).await;
    requests
}

/// The node itself makes good what went wrong.
async fn lives_on(case: Case, world: &World) -> usize {
    let armed = Armed::start(world, LEASE, &case.failpoint(0, case.rides())).await;
    let (_turn_to, node) = watch::channel(armed.node.0.address);
    let hit = armed.says("a failpoint is hit");
    let (told, ()) = join(carried_out(wishes(3, case.rides()), &node), hit).await;
    let requests = told.len();
    world.has_kept_its_promise(armed.node.0.address, told).await;
    requests
}

/// A zombie: the whole node stops, another does its work, and then it goes on as if nothing had been.
async fn stopped(case: Case, world: &World, wishes: Vec<Wish>) -> usize {
    let armed = Armed::start(world, LEASE, &case.failpoint(0, case.rides())).await;
    let requests = zombie(case, world, armed, wishes, Vec::new()).await;
    requests.expect("a server can always be written to")
}

/// The same in an SQLite file, which another node can write only if no thread of the zombie was just writing. If one was,
/// the whole is told again in another file.
async fn stopped_outside_a_write(case: Case, mut world: World) -> usize {
    for _ in 0..STOPS_MAX {
        let armed = Armed::of(world.serve(LEASE, NEVER, NEVER), &case.failpoint(1, 1)).await;
        let (_turn_to, node) = watch::channel(armed.node.0.address);
        // What it does when it starts is mostly done once this is settled, and it has nothing else to do.
        let first = wishes(2, 0).remove(1);
        let told = carried_out(vec![first], &node).await;
        world.comes_to("select status from payment", &["succeeded"]).await;
        let wishes = if case.rides() > 0 { wishes(0, 1) } else { wishes(1, 0) };
        if let Some(requests) = zombie(case, &world, armed, wishes, told).await {
            return requests;
        }
        world = World::new(Place::sqlite(), "");
    }
    panic!("{case:?}: it is always writing");
}

/// None if nobody else can write while it is stopped.
async fn zombie(
    case: Case,
    world: &World,
    armed: Armed,
    wishes: Vec<Wish>,
    before: Vec<Told>,
) -> Option<usize> {
    let (turn_to, node) = watch::channel(armed.node.0.address);
    let asking = tokio::spawn(async move { carried_out(wishes, &node).await });
    armed.stops().await;
    if !world.can_be_written().await {
        asking.abort();
        return None;
    }
    world.lapse().await;
    let next = world.node(LEASE);
    turn_to.send_replace(next.0.address);
    let mut told = asking.await.expect("no panic");
    told.extend(before);
    world.comes_to("select id from payment where status <> 'succeeded'", &[]).await;
    world.has_a_payment_exactly_for_each_answer().await;
    match case.proof() {
        Proof::None => {}
        Proof::Lapse => {
            let lapses = world.texts("select detail from ibid_event where detail like '%lapsed%'").await;
            assert!(!lapses.is_empty(), "nobody took over");
        }
        Proof::SecondTry => {
            let again = world.texts("select name from ibid_effect where tries > 1").await;
            assert!(!again.is_empty(), "no other worker made the call");
        }
    }
    armed.node.0.wake();
    if let Some(words) = case.last_words() {
        armed.says(words).await;
    }
    // It ends whatever it has in hand before it ends.
    assert!(armed.node.0.stop(), "the zombie ends well");
    let requests = told.len();
    world.has_kept_its_promise(next.0.address, told).await;
    Some(requests)
}

/// In an SQLite file the lock of whoever writes is the lease: nobody can take over, and the zombie's work stands.
async fn stopped_with_the_file(case: Case, world: &World) -> usize {
    // It must not carry out the effects that are to stop the other one: its worker looks when it starts, which is over
    // once a payment of its own is settled, and then never again.
    let next = Node(Program::of(world.serve(LEASE, "100ms", NEVER)));
    let (_turn_to, node) = watch::channel(next.0.address);
    let before = carried_out(vec![wishes(4, 0).remove(3)], &node).await;
    world.comes_to("select status from payment", &["succeeded"]).await;
    let armed = Armed::start(world, LEASE, &case.failpoint(0, case.rides())).await;
    let (_turn_to, node) = watch::channel(armed.node.0.address);
    let breaking = async {
        armed.stops().await;
        tokio::time::sleep(PAST_THE_LEASE).await;
        world.has_a_payment_exactly_for_each_answer().await;
        armed.node.0.wake();
    };
    let (mut told, ()) = join(carried_out(wishes(3, case.rides()), &node), breaking).await;
    told.extend(before);
    let requests = told.len();
    world.has_kept_its_promise(next.0.address, told).await;
    requests
}

/// As short as a lease can be on a machine that is busy with other tests.
const LEASE: &str = "1s";

/// How long a zombie sleeps that nobody can wait for. It is no synchronisation: shorter would prove less and pass too.
pub(crate) const PAST_THE_LEASE: Duration = Duration::from_millis(1500);

/// A start and a payment take some tens of milliseconds, of which a node writes a few.
const STOPS_MAX: usize = 5;

/// Longer than any test.
const NEVER: &str = "1h";

/// Twice the cores: half of the cases wait at any time.
const CASES_AT_ONCE: usize = 4;
