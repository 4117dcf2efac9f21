use std::time::Duration;

use ibid::store::checkup::ServerTuning;
use ibid::store::run_times::RunTimes;

use super::*;

fn healthy() -> Checkup {
    let setting = |name, value: &str| Setting { name, value: value.to_owned(), is_weak: false };
    let schema = Schema::Step { found: 1, known: 1 };
    Checkup::new("PostgreSQL 17.2", schema, Role::Primary).with(|checkup| {
        checkup.clock = Some(ClockGap { ahead_us: -700, within: Duration::from_micros(900) });
        checkup.durability = vec![
            setting("fsync", "on"),
            setting("synchronous_commit", "on"),
            setting("full_page_writes", "on"),
        ];
        checkup.standbys = Some(Standbys::default());
        checkup.pooler = Some(Pooler::NotSeen);
        checkup.has_secret = true;
        checkup.open_cases = Some(OpenCases::default());
        checkup.runs = Some(vec![RunTimes {
            example: "POST /payments".to_owned(),
            has_others: false,
            count: 1000,
            p99: Duration::from_millis(40),
            lease: Duration::from_secs(60),
        }]);
        checkup.tuning = Some(ServerTuning::default());
    })
}

/// Returns the checks that are not `ok` after a change, with their grade and texts.
fn amiss(change: impl FnOnce(&mut Checkup)) -> Vec<(&'static str, Grade, String)> {
    let mut checkup = healthy();
    change(&mut checkup);
    let findings = of(&checkup, 0).into_iter().filter(|finding| finding.grade != Grade::Ok);
    findings
        .map(|finding| (finding.check, finding.grade, format!("{} | {}", finding.found, finding.meaning)))
        .collect()
}

fn one(change: impl FnOnce(&mut Checkup)) -> (&'static str, Grade, String) {
    let mut all = amiss(change);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn standby(name: &str, is_synchronous: impl Into<Option<bool>>) -> Standby {
    Standby { name: Some(name.to_owned()), is_synchronous: is_synchronous.into() }
}

#[test]
fn a_healthy_store_has_nothing_amiss() {
    assert_eq!(amiss(|_| {}), []);
}

#[test]
fn a_clock_gap_of_a_second_plus_the_round_trip_is_fine() {
    let gap = |ahead_us, millis| {
        move |checkup: &mut Checkup| {
            checkup.clock = Some(ClockGap { ahead_us, within: Duration::from_millis(millis) });
        }
    };
    assert_eq!(amiss(gap(1_000_000, 0)), []);
    assert_eq!(amiss(gap(-1_900_000, 900)), []);
    for far in [gap(1_000_001, 0), gap(-2_000_000, 900)] {
        let (check, grade, text) = one(far);
        assert_eq!((check, grade), ("clock", Grade::Warning));
        assert!(text.contains("the node's time never decides"), "{text}");
    }
    let (check, grade, text) = one(gap(601_000_000, 0));
    assert_eq!((check, grade), ("clock", Grade::Warning));
    assert!(text.contains("nothing is reaped"), "{text}");
    assert!(one(gap(-601_000_000, 0)).2.contains("the node's time never decides"));
    assert!(one(gap(-2_000_000, 0)).2.starts_with("the store is 2000.0 ms behind this node"));
}

#[test]
fn clocks_of_a_cluster_that_differ_are_named() {
    let (check, grade, text) = one(|checkup| {
        let value = "1200 ms apart".to_owned();
        checkup.durability.push(Setting { name: SERVER_CLOCKS, value, is_weak: false });
    });
    assert_eq!((check, grade), ("clocks", Grade::Warning));
    assert!(text.starts_with("1200 ms apart | ") && text.contains("time service"), "{text}");
}

#[test]
fn a_weak_setting_is_bad_unless_it_is_accepted() {
    let weak = |checkup: &mut Checkup| {
        checkup.durability[1] =
            Setting { name: "synchronous_commit", value: "off".to_owned(), is_weak: true };
    };
    let (check, grade, text) = one(weak);
    assert_eq!((check, grade), ("durability", Grade::Bad));
    assert!(text.contains("(`synchronous_commit = off`)") && text.contains("durability=weak"), "{text}");
    let accepted = one(|checkup| {
        weak(checkup);
        checkup.weak_accepted = true;
    });
    assert_eq!(accepted.1, Grade::Warning);
    // Opening a store does not check this setting.
    assert_eq!(one(|checkup| checkup.durability[2].is_weak = true).1, Grade::Warning);
    assert_eq!(one(|checkup| checkup.role = Role::ReadOnly).1, Grade::Bad);
    assert_eq!(one(|checkup| checkup.needs = Some("14".to_owned())).1, Grade::Bad);
}

#[test]
fn a_schema_is_current_old_or_from_the_future() {
    let step = |found, known| one(|checkup| checkup.schema = Schema::Step { found, known });
    assert!(step(1, 2).1 == Grade::Warning && step(1, 2).2.contains("old"));
    let too_new = one(|checkup| checkup.schema = Schema::TooNew { found: 3, known: 2 });
    assert!(too_new.1 == Grade::Bad && too_new.2.contains("from the future"));
    assert_eq!(amiss(|checkup| checkup.schema = Schema::Step { found: 3, known: 2 }), []);
    assert_eq!(one(|checkup| checkup.schema = Schema::Absent).1, Grade::Warning);
    assert_eq!(one(|checkup| checkup.schema = Schema::Altered { number: 1 }).1, Grade::Bad);
}

#[test]
fn only_a_synchronous_standby_keeps_acknowledged_commits() {
    let with = |awaited: &str, connected: Vec<Standby>| {
        let standbys = Standbys { awaited: awaited.to_owned(), connected, ..Standbys::default() };
        amiss(|checkup| checkup.standbys = Some(standbys))
    };
    assert_eq!(with("", vec![]), []);
    assert_eq!(with("b", vec![standby("a", false), standby("b", true)]), []);
    let lossy = with("", vec![standby("a", false)]).remove(0);
    assert_eq!((lossy.0, lossy.1), ("replication", Grade::Warning));
    assert!(
        lossy
            .2
            .contains("may lose acknowledged commits: a request whose response was replayed may run again"),
        "{}",
        lossy.2
    );
    assert!(lossy.2.contains("`synchronous_standby_names`"), "it says what to set: {}", lossy.2);
    for missing in [vec![], vec![standby("a", false)]] {
        assert_eq!(with("b", missing).remove(0).1, Grade::Bad, "commits wait");
    }
    // Without the right to see it, every standby counts as asynchronous if the setting names none.
    assert_eq!(with("", vec![standby("a", None)]).remove(0).1, Grade::Warning);
    assert_eq!(with("a", vec![standby("a", None)]).remove(0).1, Grade::Unseen);
    let blind = Standbys { missing: vec!["process"], ..Standbys::default() };
    let unseen = one(|checkup| checkup.standbys = Some(blind));
    assert!(unseen.1 == Grade::Unseen && unseen.2.contains("`process`"), "{unseen:?}");
}

#[test]
fn only_records_that_need_an_operator_are_a_warning() {
    let cases = |cases| amiss(|checkup| checkup.open_cases = Some(cases));
    assert_eq!(cases(OpenCases { unknown: 2, ..OpenCases::default() }), []);
    for open in [
        OpenCases { dead_letters: 1, ..OpenCases::default() },
        OpenCases { effects_unknown: 1, ..OpenCases::default() },
        OpenCases { effects_dead: 1, ..OpenCases::default() },
    ] {
        assert_eq!(cases(open).remove(0).1, Grade::Warning, "{open:?}");
    }
    assert_eq!(one(|checkup| checkup.open_cases = None).1, Grade::Unseen);
}

#[test]
fn who_made_the_secret_is_said() {
    let text = |configured, kept| secret(configured, kept).found;
    assert_eq!(text(0, true), "made by the store itself");
    assert_eq!(text(2, false), "configured: 2");
    assert!(text(0, false).contains("none made yet"));
    assert!(text(1, true).contains("still there"));
}

#[test]
fn a_pooler_that_mixes_statements_is_a_warning() {
    let with = |pooler| amiss(|checkup| checkup.pooler = Some(pooler));
    assert_eq!(with(Pooler::Seen), []);
    assert!(with(Pooler::MixesStatements).remove(0).2.contains("prepare=false"));
    assert_eq!(with(Pooler::Undecided).remove(0).1, Grade::Unseen);
}

#[test]
fn every_further_refusal_is_named_once() {
    let (check, grade, text) = one(|checkup| checkup.refusals.push("`wsrep_on = ON`".to_owned()));
    assert_eq!((check, grade), ("refusal", Grade::Bad));
    assert!(text.starts_with("`wsrep_on = ON` | "), "{text}");
}

#[test]
fn a_standby_gets_the_advice_for_its_database() {
    let standby = |software: &str| {
        let mut all = amiss(|checkup| {
            checkup.software = software.to_owned();
            checkup.role = Role::Standby;
        });
        all.remove(0).2
    };
    assert!(standby("PostgreSQL 17.2").contains("postgres://USER@A,B/DATABASE"));
    assert_eq!(standby("Redis 7.0.15"), "a standby | ibid has to write: name the primary");
}

#[test]
fn software_that_was_not_tested_is_said_so() {
    let checkup = healthy().with(|checkup| {
        checkup.is_untested = true;
        checkup.software = "MySQL 8.4.3".to_owned();
    });
    let findings = of(&checkup, 1);
    assert!(findings[0].meaning.contains("built for it, not tested on it"), "{:?}", findings[0].meaning);
}
