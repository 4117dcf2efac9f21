//! Stories of the comparison, and an oracle that counts by hand.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Parses lines of the form `key amount`, numbered from 1. `?` before the key marks an open line; `-` is no key.
fn lines(text: &str) -> Vec<LedgerLine> {
    let line = |(number, text): (u64, &str)| {
        let (key, amount) = text.trim().split_once(' ').expect("a key and an amount");
        let (open, key) = key.strip_prefix('?').map_or((false, key), |key| (true, key));
        let key = if key == "-" { String::new() } else { key.to_owned() };
        LedgerLine { number, key, values: vec![amount.to_owned()], open, partial: false }
    };
    (1..).zip(text.split(',').filter(|text| !text.trim().is_empty())).map(line).collect()
}

fn run(ours: Vec<LedgerLine>, theirs: Vec<LedgerLine>) -> ComparisonReport {
    let mut comparison = Comparison::new(vec!["amount".to_owned()]);
    ours.into_iter().for_each(|line| comparison.ours(line).unwrap());
    for line in theirs {
        let raw = format!("line {}", line.number);
        comparison.theirs(line, || raw).unwrap();
    }
    comparison.finish()
}

/// Runs a comparison and returns each difference as its kind and key.
fn differences(ours: &str, theirs: &str) -> Vec<String> {
    let report = run(lines(ours), lines(theirs));
    report
        .differences
        .iter()
        .map(|difference| format!("{} {}", difference.kind.name(), difference.key))
        .collect()
}

#[test]
fn equal_ledgers_are_equal_in_any_order_and_by_value() {
    let report = run(lines("a 12.50, b 3, c 0"), lines("c 0.0, a 12.5, b 3.00"));
    assert!(report.is_equal());
    assert_eq!((report.counts.ours, report.counts.theirs, report.counts.alike), (3, 3, 3));
    assert!(differences("", "").is_empty());
}

#[test]
fn a_double_charge_is_found_and_comes_first() {
    let report = run(lines("a 1, b 2"), lines("x 9, a 1, b 3, a 1, a 1"));
    let words: Vec<&str> = report.differences.iter().map(|difference| difference.kind.name()).collect();
    assert_eq!(words, ["theirs_twice", "theirs_twice", "theirs_only", "differs"]);
    let [second, third, ..] = &report.differences[..] else { unreachable!() };
    assert_eq!(second.repeat, Some(RepeatedLine { first: 2, nth: 2 }));
    assert_eq!(third.repeat, Some(RepeatedLine { first: 2, nth: 3 }));
    assert_eq!(second.ours.as_ref().map(|side| side.number), Some(1));
    assert_eq!((second.raw.as_deref(), third.raw.as_deref()), (Some("line 4"), Some("line 5")));
}

#[test]
fn a_double_charge_of_a_key_that_is_not_ours_is_found_too() {
    assert_eq!(differences("", "x 1, x 1"), ["theirs_twice x", "theirs_only x"]);
}

#[test]
fn what_differs_is_named_by_its_column() {
    let report = run(lines("a 12.50"), lines("a 12.51"));
    let ColumnDifference { column, ours, theirs } = &report.differences[0].columns[0];
    assert_eq!((column.as_str(), ours.as_str(), theirs.as_str()), ("amount", "12.50", "12.51"));
    assert_eq!(report.differences[0].raw, None);
}

#[test]
fn what_only_one_has_is_found_on_its_side() {
    assert_eq!(differences("a 1, b 2", "b 2, c 3"), ["theirs_only c", "ours_only a"]);
    assert_eq!(differences("a 1, a 1", "a 1"), ["ours_twice a"]);
}

#[test]
fn a_line_without_a_key_stands_alone_and_is_never_a_double() {
    assert_eq!(differences("- 1", "- 1, - 1"), ["theirs_only ", "theirs_only ", "ours_only "]);
    assert!(differences("?- 1", "").is_empty());
}

#[test]
fn an_open_line_of_ours_may_be_there_or_not_and_must_not_differ() {
    let report = run(lines("?a 1, ?b 1, ?c 1"), lines("a 1, c 2"));
    assert_eq!((report.counts.open_found, report.counts.open_missing), (2, 1));
    assert_eq!((report.differences.len(), report.count(DifferenceKind::Differs)), (1, 1));
}

#[test]
fn what_we_do_not_know_is_compared_with_nothing() {
    let ours = |amount: &str, partial| LedgerLine {
        number: 1,
        key: "a".to_owned(),
        values: vec![amount.to_owned()],
        open: false,
        partial,
    };
    let count = |line| run(vec![line], lines("a 1")).count(DifferenceKind::Differs);
    assert_eq!((count(ours("", true)), count(ours("", false)), count(ours("2", true))), (0, 1, 1));
}

#[test]
fn more_than_may_be_held_is_refused() {
    let mut comparison = Comparison::new(vec!["amount".to_owned()]).memory_bytes_max(1000);
    let mut all = lines("a 1, b 1, c 1, d 1").into_iter();
    let refused = all.find_map(|line| comparison.ours(line).err());
    assert!(refused.is_some());
    let mut comparison = Comparison::new(vec!["amount".to_owned()]).memory_bytes_max(1000);
    let refused = comparison.theirs(lines("a 1").remove(0), || "x".repeat(1000));
    assert!(refused.is_err());
}

proptest! {
    #[test]
    fn every_line_is_alike_or_found_exactly_once(
        ours in prop::collection::vec((0u8..6, 0u8..2), 0..12),
        theirs in prop::collection::vec((0u8..6, 0u8..2), 0..12),
    ) {
        let side = |side: &[(u8, u8)]| -> Vec<LedgerLine> {
            let line = |(number, (key, amount)): (u64, &(u8, u8))| LedgerLine {
                number,
                key: format!("k{key}"),
                values: vec![amount.to_string()],
                open: false,
                partial: false,
            };
            (1..).zip(side).map(line).collect()
        };
        let report = run(side(&ours), side(&theirs));
        let by_key = |side: &[(u8, u8)]| {
            let mut map: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
            side.iter().for_each(|(key, amount)| map.entry(*key).or_default().push(*amount));
            map
        };
        let (ours, theirs) = (by_key(&ours), by_key(&theirs));
        let more = |map: &BTreeMap<u8, Vec<u8>>| map.values().map(|all| all.len() as u64 - 1).sum::<u64>();
        let lacks = |one: &BTreeMap<u8, Vec<u8>>, other: &BTreeMap<u8, Vec<u8>>| {
            one.keys().filter(|key| !other.contains_key(key)).count() as u64
        };
        let both = ours.iter().filter_map(|(key, mine)| Some((mine[0], theirs.get(key)?[0])));
        let differ = both.clone().filter(|(mine, other)| mine != other).count() as u64;
        prop_assert_eq!(report.count(DifferenceKind::TheirsTwice), more(&theirs));
        prop_assert_eq!(report.count(DifferenceKind::OursTwice), more(&ours));
        prop_assert_eq!(report.count(DifferenceKind::TheirsOnly), lacks(&theirs, &ours));
        prop_assert_eq!(report.count(DifferenceKind::OursOnly), lacks(&ours, &theirs));
        prop_assert_eq!(report.count(DifferenceKind::Differs), differ);
        prop_assert_eq!(report.counts.alike, both.count() as u64 - differ);
    }
}
