//! `payments ledger`: our payments and rides beside the processor's charges.
//!
//! The comparison is the library's. The processor is asked first: whatever it charged by then, we had written down before.

use std::io::{self, Write};

use ibid_ledger::{Comparison, ComparisonReport, DifferenceKind, LedgerDifference, LedgerLine, LineValues};
use serde_json::{Value, json};

use crate::args::LedgerArgs;
use crate::db::Db;
use crate::db::ledger::Booked;
use crate::listen::Failure;
use crate::provider_client::{ANSWER_WITHIN, Listed, ProviderClient};

/// Compares, prints what was found, and says whether the books are equal.
pub async fn run(args: LedgerArgs) -> Result<bool, Failure> {
    let charges = ProviderClient::new(args.provider, ANSWER_WITHIN).charges().await?;
    let db = Db::connect(&args.store).await?;
    let report = compare(&db, charges).await;
    db.close().await;
    let report = report?;
    print(&report, args.json, &mut io::stdout().lock())?;
    Ok(report.is_equal())
}

async fn compare(db: &Db, charges: Vec<Listed>) -> Result<ComparisonReport, Failure> {
    let mut comparison = Comparison::new(COLUMNS.map(str::to_owned).to_vec());
    let mut number = 0;
    db.booked::<Failure>(|booked| {
        number += 1;
        Ok(comparison.ours(ours(number, booked))?)
    })
    .await?;
    for (number, charge) in (1..).zip(charges) {
        let whole = charge.whole.clone();
        comparison.theirs(theirs(number, charge), || whole)?;
    }
    Ok(comparison.finish())
}

fn ours(number: u64, booked: Booked) -> LedgerLine {
    let Booked { id, amount_cents, currency, status, charge_id } = booked;
    let is_pending = status == "pending";
    let status = if is_pending { String::new() } else { status };
    // One that was refused outright was never charged, and has no charge to be found.
    let was_charged = charge_id.is_some();
    let values = vec![amount_cents.to_string(), currency, status, charge_id.unwrap_or_default()];
    LedgerLine { number, key: id, values, open: is_pending || !was_charged, partial: is_pending }
}

fn theirs(number: u64, charge: Listed) -> LedgerLine {
    // What the bank declined has failed with us.
    let status = if charge.status == "declined" { "failed".to_owned() } else { charge.status };
    let values = vec![charge.amount_cents.to_string(), charge.currency, status, charge.charge_id];
    LedgerLine { number, key: charge.reference.unwrap_or_default(), values, open: false, partial: false }
}

fn print(report: &ComparisonReport, as_json: bool, out: &mut dyn Write) -> io::Result<()> {
    if as_json {
        let found: Vec<Value> = report.differences.iter().map(|finding| json_of(report, finding)).collect();
        return writeln!(out, "{:#}", json!({ "equal": report.is_equal(), "differences": found }));
    }
    for finding in &report.differences {
        let key = if finding.key.is_empty() { "(no reference)" } else { &finding.key };
        let odd =
            finding.columns.iter().map(|odd| format!("  {}: {} ≠ {}", odd.column, odd.ours, odd.theirs));
        let line = finding.theirs.as_ref().filter(|_| finding.kind.is_unknown_to_us());
        let what = line.map_or_else(String::new, |line| format!("  {}", line.values.join(" ")));
        writeln!(out, "{:12}  {key}{what}{}", finding.kind.name(), odd.collect::<String>())?;
    }
    let counts = report.counts;
    let found = DifferenceKind::ALL.map(|kind| format!(", {} {}", report.count(kind), kind.name())).concat();
    writeln!(out, "ours {}, theirs {}, alike {}{found}", counts.ours, counts.theirs, counts.alike)
}

fn json_of(report: &ComparisonReport, finding: &LedgerDifference) -> Value {
    let side = |side: &Option<LineValues>| {
        let values = |side: &LineValues| {
            report.columns.iter().cloned().zip(side.values.iter().cloned().map(Value::from)).collect()
        };
        side.as_ref().map_or(Value::Null, |side| Value::Object(values(side)))
    };
    json!({
        "kind": finding.kind.name(),
        "reference": finding.key,
        "ours": side(&finding.ours),
        "theirs": side(&finding.theirs),
    })
}

const COLUMNS: [&str; 4] = ["amountCents", "currency", "status", "chargeId"];
