//! The files for operators: alert rules and a dashboard that use existing metrics, and a runbook for each alert.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ibid::telemetry::METRICS;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns all metric samples that a scrape may show.
fn samples() -> BTreeSet<String> {
    let suffixes = |kind: &str| match kind {
        "histogram" => &["_bucket", "_sum", "_count"][..],
        _ => &[""],
    };
    METRICS
        .iter()
        .flat_map(|(name, kind, _)| suffixes(kind).iter().map(move |suffix| format!("{name}{suffix}")))
        .collect()
}

/// Returns the names of the metrics in an expression.
fn metric_names(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("ibid_")).map(str::to_owned).collect()
}

/// One alert of the rules, with the fields that these tests need.
#[derive(Debug, Default)]
struct Alert {
    name: String,
    expression: String,
    runbook: String,
}

/// Parses the alerts of the file. The file is ours, so its lines can be read one by one.
fn alerts() -> Vec<Alert> {
    let mut alerts: Vec<Alert> = Vec::new();
    let mut within_expression = false;
    for line in text("deploy/prometheus/alerts.yml").lines() {
        if let Some(name) = line.strip_prefix("      - alert: ") {
            alerts.push(Alert { name: name.to_owned(), ..Alert::default() });
        }
        let Some(alert) = alerts.last_mut() else { continue };
        match line.strip_prefix("          ") {
            Some(part) if within_expression => {
                alert.expression.push_str(part);
                alert.expression.push('\n');
            }
            Some(part) => alert.runbook.push_str(part.strip_prefix("runbook: ").unwrap_or_default()),
            None => within_expression = line == "        expr: |-",
        }
    }
    alerts
}

#[test]
fn every_alert_speaks_of_metrics_that_exist() {
    let (samples, alerts) = (samples(), alerts());
    assert!(alerts.len() >= 9, "{alerts:?}");
    for alert in &alerts {
        let named = metric_names(&alert.expression);
        assert!(!named.is_empty(), "{alert:?}");
        for name in named {
            assert!(samples.contains(&name), "{} speaks of `{name}`", alert.name);
        }
    }
    let all: BTreeSet<String> = alerts.iter().flat_map(|alert| metric_names(&alert.expression)).collect();
    assert_eq!(all, metric_names(&text("deploy/prometheus/alerts.yml")), "no expression was overlooked");
}

#[test]
fn every_alert_has_its_runbook_and_every_runbook_its_alert() {
    let folder = root().join("docs/operate/alerts");
    let pages = std::fs::read_dir(folder).expect("the runbooks").map(|entry| entry.expect("an entry").path());
    let pages: BTreeSet<String> =
        pages.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect();
    let mut linked = BTreeSet::from(["README.md".to_owned()]);
    let index = text("docs/operate/alerts/README.md");
    for alert in alerts() {
        let page = text(&alert.runbook);
        assert!(page.starts_with(&format!("# {}\n", alert.name)), "{} has a separate page", alert.name);
        for part in ["**What it means.**", "**How to look.**", "**How to settle it.**"] {
            assert!(page.contains(part), "{}: {part}", alert.runbook);
        }
        let file = alert
            .runbook
            .strip_prefix("docs/operate/alerts/")
            .expect("it is in the same folder as the others");
        assert!(index.contains(&format!("]({file})")), "{file} is in the list");
        linked.insert(file.to_owned());
    }
    assert_eq!(pages, linked);
}

#[test]
fn every_panel_of_the_dashboard_speaks_of_metrics_that_exist() {
    let (samples, page) = (samples(), text("deploy/grafana/ibid.json"));
    let dashboard: serde_json::Value = serde_json::from_str(&page).expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64()), "every id once: {}", panel["title"]);
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().expect("an expression");
            let named = metric_names(expression);
            assert!(!named.is_empty(), "{expression}");
            for name in named {
                assert!(samples.contains(&name), "{} shows `{name}`", panel["title"]);
            }
        }
    }
    for name in metric_names(&page) {
        assert!(samples.contains(&name), "`{name}` somewhere else in the file");
    }
}
