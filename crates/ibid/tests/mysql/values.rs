//! Values that a server could bend: instants in odd time zones, texts under collations, packets that are too large.

use ibid::store::clock::Clock;
use ibid_core::change::Draft;
use ibid_core::record::State;
use ibid_core::scope::{Identity, Operation};
use ibid_core::store::RecordFilter;
use ibid_testkit::contract::{answering, commit, draft, insert, load, nonce, response};

use super::*;

/// In the second half of the hour that a clock runs through twice, `unix_timestamp(now())` is an hour off.
#[test]
fn the_clock_is_right_in_every_time_zone() {
    let server = MariaDb::start();
    let zones = std::process::Command::new("mariadb-tzinfo-to-sql")
        .args(["/usr/share/zoneinfo/Europe/Berlin", "Europe/Berlin"])
        .output()
        .expect("the program that reads time zones");
    server.sql("mysql", &String::from_utf8(zones.stdout).expect("statements"));
    let clock = "timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))";
    // 2026-10-25 02:30 for the first and for the second time.
    for instant in [1_792_888_200_i64, 1_792_891_800] {
        for zone in ["+00:00", "+05:30", "-11:00", "Europe/Berlin", "SYSTEM"] {
            let text = format!("set time_zone = '{zone}', timestamp = {instant}.25; select {clock}");
            assert_eq!(server.sql("", &text), format!("{instant}250000"), "{zone}");
        }
    }
    let tempting = "set time_zone = 'Europe/Berlin', timestamp = 1792891800; select unix_timestamp(now())";
    assert_ne!(server.sql("", tempting), "1792891800", "the trap is there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instants_are_utc_whatever_the_server_is_set_to() {
    let server = MariaDb::shared();
    let database = server.create_database();
    assert_eq!(server.sql("", "select @@global.time_zone"), "+05:30");
    let store = open(&server, &database).await;
    for hot in [true, false] {
        let name = TestRecord::fresh();
        let change = if hot { fresh(&name, LONG) } else { insert(&name, draft(&name, State::Completed)) };
        let before = Clock::system().now();
        assert!(matches!(commit(&*store, &change).await, Commit::Done(_)));
        let created = load(&*store, name.id).await.expect("it exists").record.created_at;
        assert!(
            created.since(before) < Duration::from_secs(60)
                && before.since(created) < Duration::from_secs(60)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_that_a_collation_takes_for_equal_stay_apart() {
    let server = MariaDb::shared();
    let database = server.create_database();
    server.sql("", &format!("alter database {database} character set utf8mb4 collate utf8mb4_general_ci"));
    assert_eq!(
        server.sql(&database, "select 'abc' = 'ABC', 'abc' = 'äbc', 'abc' = 'abc '"),
        "1|1|1",
        "the trap is there"
    );
    let store = open(&server, &database).await;
    let texts = ["abc", "ABC", "äbc", "abc ", "Abc"];
    for text in texts {
        let fate = commit(&*store, &fresh(&TestRecord::of(text, "key"), LONG)).await;
        assert!(matches!(fate, Commit::Done(_)), "`{text}` is a separate tenant: {fate:?}");
    }
    let browse = store.browse().expect("it can be browsed");
    for text in texts {
        let filter = RecordFilter::default().with(|filter| filter.tenant = Some(text.to_owned()));
        let listed = browse.list(filter).await.expect("a list").items;
        let tenants: Vec<_> = listed.iter().map(|stored| stored.record.identity.tenant.as_str()).collect();
        assert_eq!(tenants, [text]);
        let value = text.as_bytes().to_vec();
        let stored = store.put_if_absent(text, value.clone().into()).await.expect("a setting");
        assert_eq!(stored, value, "`{text}` is a separate setting");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_larger_than_a_packet_fails_alone_or_is_split() {
    let server = MariaDb::start_with(&[("max_allowed_packet", "1M")]);
    let database = server.create_database();
    let store = open(&server, &database).await;
    let with_body = |bytes: usize| {
        let name = TestRecord::fresh();
        let mut change = answering(insert(&name, draft(&name, State::Completed)), b"");
        change.response = Some(response(vec![0xa5; bytes]));
        change
    };
    let small = with_body(300 << 10);
    assert!(matches!(commit(&*store, &small).await, Commit::Done(_)));
    assert_eq!(load(&*store, small.id).await.expect("it exists").body().map(<[u8]>::len), Some(300 << 10));
    let large = with_body(600 << 10);
    let refused = store.commit(Arc::new(large.clone()), None).await.expect_err("it fits no packet");
    assert!(!refused.is_transient() && refused.is_unwritten(), "{refused:?}");
    assert_eq!(load(&*store, large.id).await, None);
    // Together they are several packets.
    let long = |n: usize| {
        let mut name = TestRecord::of("shop", &format!("key-{:x}-{n}", nonce().0));
        let operation =
            Operation { method: "POST".into(), path: format!("/{}", "p".repeat(20_000)).as_str().into() };
        name.identity = Arc::new(Identity { operation, ..Identity::clone(&name.identity) });
        insert(&name, Draft { due_in: Some(LONG), ..draft(&name, State::InProgress) })
    };
    let fates = commit_all(&*store, (0..120).map(long).collect()).await;
    assert!(fates.values().all(|fate| matches!(fate, Commit::Done(_))));
    assert_eq!(server.sql(&database, "select count(*) from ibid_record"), "121");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_method_that_fits_no_column_fails_alone() {
    let server = MariaDb::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let mut name = TestRecord::fresh();
    let operation = Operation { method: "M".repeat(300).as_str().into(), path: "/".into() };
    name.identity = Arc::new(Identity { operation, ..Identity::clone(&name.identity) });
    let (refused, records) =
        tokio::join!(store.commit(Arc::new(fresh(&name, LONG)), None), begin_some(&store, 20, LONG));
    let error = refused.expect_err("it is longer than the column");
    assert!(!error.is_transient() && error.is_unwritten(), "{error:?}");
    assert_eq!(records.len(), 20);
    assert_eq!(store.batch_counts().changes, 20, "it was in no batch");
}
