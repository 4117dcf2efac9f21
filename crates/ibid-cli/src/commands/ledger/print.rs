//! Prints the differences: a table for people, JSON for programs.

use std::io::Write;

use ibid_ledger::{ComparisonReport, DifferenceKind, LedgerDifference, LineValues};
use serde_json::{Map, Value, json};

use crate::output::{Failure, print_line, print_table};

/// Prints one row per difference to `out`, and the totals to `talk`.
pub(super) fn table(
    report: &ComparisonReport,
    letters: Option<u64>,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut left_out = Vec::new();
    for kind in DifferenceKind::ALL {
        let of_kind = report.differences.iter().filter(|difference| difference.kind == kind);
        rows.extend(of_kind.take(ROWS_MAX).map(row));
        let more = report.count(kind).saturating_sub(ROWS_MAX as u64);
        if more > 0 {
            left_out.push(format!("{more} more are `{}`: `--json` has them all", kind.name()));
        }
    }
    if !rows.is_empty() {
        print_table(out, &COLUMNS, rows)?;
    }
    for line in left_out {
        print_line(talk, line)?;
    }
    let counts = report.counts;
    let mut summary = format!("ours {}, theirs {}, alike {}", counts.ours, counts.theirs, counts.alike);
    if counts.open_found + counts.open_missing > 0 {
        summary += &format!(
            "; open with us: {} that the provider has, {} that it does not",
            counts.open_found, counts.open_missing
        );
    }
    if let Some(new) = letters {
        summary += &format!("; new dead letters: {new}");
    }
    print_line(talk, summary)
}

/// Returns the whole report as JSON.
pub(super) fn json(report: &ComparisonReport, letters: Option<u64>) -> Value {
    let counts = report.counts;
    let by_kind =
        DifferenceKind::ALL.iter().map(|kind| (kind.name().to_owned(), Value::from(report.count(*kind))));
    json!({
        "equal": report.is_equal(),
        "compared": report.columns,
        "lines": {
            "ours": counts.ours, "theirs": counts.theirs, "alike": counts.alike,
            "open_found": counts.open_found, "open_missing": counts.open_missing,
        },
        "counts": by_kind.collect::<Map<_, _>>(),
        "new_dead_letters": letters,
        "differences": report.differences.iter().map(|found| difference_json(report, found)).collect::<Vec<_>>(),
    })
}

/// Sums up the differences in a few words.
pub(super) fn summarize(report: &ComparisonReport) -> String {
    let counts = DifferenceKind::ALL.iter().map(|kind| (report.count(*kind), kind.name()));
    counts
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{count} {name}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn row(difference: &LedgerDifference) -> Vec<String> {
    let again = |is_there: bool| match (&difference.repeat, is_there) {
        (Some(repeat), true) => format!(", number {} after line {}", repeat.nth, repeat.first),
        _ => String::new(),
    };
    let twice_ours = difference.kind == DifferenceKind::OursTwice;
    let pick = |ours: bool| {
        let columns = difference.columns.iter();
        let value =
            columns.map(|odd| format!(", {} `{}`", odd.column, if ours { &odd.ours } else { &odd.theirs }));
        value.collect::<String>()
    };
    let words = |side: &Option<LineValues>, ours: bool| match side {
        Some(side) => format!("line {}{}{}", side.number, again(ours == twice_ours), pick(ours)),
        None => "-".to_owned(),
    };
    let key = if difference.key.is_empty() { "-" } else { &difference.key };
    vec![
        difference.kind.name().to_owned(),
        key.to_owned(),
        words(&difference.ours, true),
        words(&difference.theirs, false),
    ]
}

fn difference_json(report: &ComparisonReport, difference: &LedgerDifference) -> Value {
    let side = |side: &Option<LineValues>| {
        side.as_ref().map(|side| {
            let values = report.columns.iter().cloned().zip(side.values.iter().cloned().map(Value::from));
            json!({ "line": side.number, "values": values.collect::<Map<_, _>>() })
        })
    };
    let columns = difference
        .columns
        .iter()
        .map(|odd| json!({ "column": odd.column, "ours": odd.ours, "theirs": odd.theirs }));
    json!({
        "kind": difference.kind.name(),
        "key": difference.key,
        "ours": side(&difference.ours),
        "theirs": side(&difference.theirs),
        "first_line": difference.repeat.map(|repeat| repeat.first),
        "number": difference.repeat.map(|repeat| repeat.nth),
        "columns": columns.collect::<Vec<_>>(),
    })
}

const COLUMNS: [&str; 4] = ["difference", "key", "ours", "theirs"];

/// Rows per kind of difference. More are no use in a terminal.
const ROWS_MAX: usize = 200;
