//! `ibid keys count`: numbers of records and dead letters, exact or estimated.

use std::io::Write;
use std::time::Duration;

use ibid::State;
use ibid::operator::{Operator, RowCount};
use ibid_console::CountsView;
use serde_json::json;

use super::keys::unreadable;
use crate::config::units::show_duration;
use crate::output::{Failure, print_fields, print_json};

/// Prints how many records there are in each state.
pub(crate) async fn run(operator: &Operator, as_json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let counts = operator.count().await.map_err(|error| unreadable(&error))?;
    if as_json {
        return print_json(out, &json!(CountsView::of(&counts)));
    }
    let by_state = State::ALL.into_iter().zip(counts.by_state);
    let mut fields: Vec<_> = by_state.map(|(state, count)| (state.name(), show(count))).collect();
    fields.push(("dead letters", show(counts.dead_letters)));
    fields.push(("dead effects", show(counts.dead_effects)));
    let oldest = counts.oldest_unknown.map(|age| Duration::from_secs(age.as_secs()));
    fields.push(("oldest unknown", oldest.map_or("none".to_owned(), show_duration)));
    print_fields(out, &fields)
}

/// Returns the number for a table, with a mark if it is an estimate.
fn show(count: RowCount) -> String {
    match count.value() {
        Some(number) if count.is_estimated() => format!("~{} (estimated)", group_digits(number)),
        Some(number) => group_digits(number),
        None => "not known".to_owned(),
    }
}

/// Returns the number with a comma between groups of three digits.
fn group_digits(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ibid::store::clock::Clock;
    use ibid::store::memory::MemoryStore;
    use ibid_testkit::contract::{TestRecord, draft, insert, put};
    use ibid_testkit::faults::{FaultyStore, StoreFault};
    use serde_json::Value;

    use super::*;

    /// Returns what the command prints for a store with two records, one of them completed.
    async fn print(fault: StoreFault, as_json: bool) -> String {
        let store = FaultyStore::new(Arc::new(MemoryStore::new(Clock::system())));
        for state in [State::Completed, State::InProgress] {
            let name = TestRecord::fresh();
            put(&*store, &insert(&name, draft(&name, state))).await;
        }
        store.set(fault);
        let mut out = Vec::new();
        run(&Operator::on_store(store), as_json, &mut out).await.expect("it counts");
        String::from_utf8(out).expect("text")
    }

    #[tokio::test]
    async fn an_estimate_is_marked_in_the_table_and_in_json() {
        let table = print(StoreFault::Estimates, false).await;
        let line = table.lines().find(|line| line.starts_with("completed")).expect("a line");
        assert!(line.ends_with("~1 (estimated)"), "{table}");
        let value: Value = serde_json::from_str(&print(StoreFault::Estimates, true).await).expect("JSON");
        assert_eq!(value["records"]["completed"], json!({ "count": 1, "estimated": true }));
    }

    #[tokio::test]
    async fn a_counted_number_has_no_mark() {
        let table = print(StoreFault::None, false).await;
        assert!(!table.contains('~') && !table.contains("estimated"), "{table}");
        let value: Value = serde_json::from_str(&print(StoreFault::None, true).await).expect("JSON");
        assert_eq!(value["records"]["completed"], json!({ "count": 1, "estimated": false }));
        assert_eq!(value["records"]["unknown"]["count"], 0);
        assert_eq!(value["oldest_unknown_seconds"], Value::Null);
    }

    #[test]
    fn digits_are_grouped_by_three() {
        let grouped = [0, 999, 1000, 12_000, 1_234_567].map(group_digits);
        assert_eq!(grouped, ["0", "999", "1,000", "12,000", "1,234,567"]);
    }
}
