//! A metrics recorder that keeps two metrics of the reaper and ignores all others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use crate::BenchError;

/// The reaper's metrics of this process.
#[derive(Clone, Default)]
pub(crate) struct ReaperMetrics {
    removed: Arc<AtomicU64>,
    /// The bits of the gauge, an `f64`.
    behind: Arc<AtomicU64>,
}

impl ReaperMetrics {
    /// Makes this the recorder of the process, which can have one only.
    pub(crate) fn install() -> Result<ReaperMetrics, BenchError> {
        let metrics = ReaperMetrics::default();
        metrics::set_global_recorder(metrics.clone()).map_err(|error| error.to_string())?;
        Ok(metrics)
    }

    /// Returns how many rows the reaper has removed.
    pub(crate) fn count_removed(&self) -> u64 {
        self.removed.load(Ordering::Relaxed)
    }

    /// Returns by how many seconds the reaper was behind at its last step.
    pub(crate) fn behind(&self) -> f64 {
        f64::from_bits(self.behind.load(Ordering::Relaxed))
    }
}

impl Recorder for ReaperMetrics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "ibid_retention_pruned_total" => Counter::from_arc(self.removed.clone()),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match key.name() {
            "ibid_reap_behind_seconds" => Gauge::from_arc(self.behind.clone()),
            _ => Gauge::noop(),
        }
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
