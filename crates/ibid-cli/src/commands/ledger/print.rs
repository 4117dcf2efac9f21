//! Findings for people and for programs.

use std::io::Write;

use ibid::ledger::{Finding, Kind, Report, Side};
use serde_json::{Map, Value, json};

use crate::output::{Failure, print_line, print_table};

/// A line a finding, and how many there were of everything on `talk`.
pub(super) fn table(
    report: &Report,
    letters: Option<u64>,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut left_out = Vec::new();
    for kind in Kind::ALL {
        let of_kind = report.findings.iter().filter(|finding| finding.kind == kind);
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

/// All of it.
pub(super) fn json(report: &Report, letters: Option<u64>) -> Value {
    let counts = report.counts;
    let by_kind = Kind::ALL.iter().map(|kind| (kind.name().to_owned(), Value::from(report.count(*kind))));
    json!({
        "equal": report.is_equal(),
        "compared": report.columns,
        "lines": {
            "ours": counts.ours, "theirs": counts.theirs, "alike": counts.alike,
            "open_found": counts.open_found, "open_missing": counts.open_missing,
        },
        "counts": by_kind.collect::<Map<_, _>>(),
        "new_dead_letters": letters,
        "differences": report.findings.iter().map(|found| finding(report, found)).collect::<Vec<_>>(),
    })
}

/// What was found, in a few words.
pub(super) fn words(report: &Report) -> String {
    let found = Kind::ALL.iter().map(|kind| (report.count(*kind), kind.name()));
    found
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{count} {name}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn row(finding: &Finding) -> Vec<String> {
    let again = |is_there: bool| match (&finding.again, is_there) {
        (Some(again), true) => format!(", number {} after line {}", again.nth, again.first),
        _ => String::new(),
    };
    let twice_ours = finding.kind == Kind::OursTwice;
    let pick = |ours: bool| {
        let columns = finding.columns.iter();
        let value =
            columns.map(|odd| format!(", {} `{}`", odd.column, if ours { &odd.ours } else { &odd.theirs }));
        value.collect::<String>()
    };
    let words = |side: &Option<Side>, ours: bool| match side {
        Some(side) => format!("line {}{}{}", side.number, again(ours == twice_ours), pick(ours)),
        None => "-".to_owned(),
    };
    let key = if finding.key.is_empty() { "-" } else { &finding.key };
    vec![
        finding.kind.name().to_owned(),
        key.to_owned(),
        words(&finding.ours, true),
        words(&finding.theirs, false),
    ]
}

fn finding(report: &Report, finding: &Finding) -> Value {
    let side = |side: &Option<Side>| {
        side.as_ref().map(|side| {
            let values = report.columns.iter().cloned().zip(side.values.iter().cloned().map(Value::from));
            json!({ "line": side.number, "values": values.collect::<Map<_, _>>() })
        })
    };
    let columns = finding
        .columns
        .iter()
        .map(|odd| json!({ "column": odd.column, "ours": odd.ours, "theirs": odd.theirs }));
    json!({
        "kind": finding.kind.name(),
        "key": finding.key,
        "ours": side(&finding.ours),
        "theirs": side(&finding.theirs),
        "first_line": finding.again.map(|again| again.first),
        "number": finding.again.map(|again| again.nth),
        "columns": columns.collect::<Vec<_>>(),
    })
}

const COLUMNS: [&str; 4] = ["difference", "key", "ours", "theirs"];

/// Of each kind: more are no longer read by a person.
const ROWS_MAX: usize = 200;
