//! The keys `not_executed_when` and `behind`, which configure the proof that a request was not executed.

use ibid_core::proof::{Hop, NotExecutedWhen};
use serde_json::{Value, json};

use super::toml_reader::{Reader, Section};

/// Reads `not_executed_when`: one table, or an array of tables.
pub(super) fn read_rules(section: &mut Section<'_, '_>, reader: &Reader<'_>) -> Option<Vec<NotExecutedWhen>> {
    let tables = section.one_or_more("not_executed_when", "not_executed_when")?;
    Some(tables.into_iter().filter_map(|table| read_rule(table, reader)).collect())
}

/// Returns the rules as they would be written in a file.
pub(super) fn show_rules(rules: &[NotExecutedWhen]) -> Value {
    rules
        .iter()
        .map(|rule| json!({ "status": rule.status, "header": rule.header, "in": rule.values }))
        .collect()
}

/// Values of `behind` by name.
pub(super) const HOPS: [(&str, Option<Hop>); 5] = [
    ("nginx", Some(Hop::Nginx)),
    ("haproxy", Some(Hop::Haproxy)),
    ("envoy", Some(Hop::Envoy)),
    ("apache", Some(Hop::Apache)),
    ("varnish", Some(Hop::Varnish)),
];

fn read_rule(mut section: Section<'_, '_>, reader: &Reader<'_>) -> Option<NotExecutedWhen> {
    let line = section.line;
    let (status, header, values) = (section.statuses("status"), section.text("header"), section.texts("in"));
    let missing = ["status", "header", "in"].into_iter().find(|key| section.line_of(key).is_none());
    section.finish();
    if let Some(key) = missing {
        let hint = "write for example { status = [503], header = \"x-response-flags\", in = [\"UF\"] }";
        reader.refuse_with_hint(line, format!("`not_executed_when` needs `{key}`"), hint);
    }
    Some(NotExecutedWhen { status: status?, header: header?.to_ascii_lowercase(), values: values? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hop_has_the_word_of_its_preset() {
        for preset in &ibid_core::proof::PRESETS {
            assert!(HOPS.contains(&(preset.name, Some(preset.hop))), "{}", preset.name);
        }
    }
}
