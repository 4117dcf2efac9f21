//! No collector: this binary was built without `otlp`.

use tracing_subscriber::layer::Identity;

use crate::output::Failure;

/// Where spans go: nowhere.
pub(crate) struct Spans {
    /// Whether somebody expects them.
    wanted: bool,
}

impl Spans {
    pub(crate) fn of_process() -> Result<Spans, Failure> {
        let named = |name| std::env::var_os(name).is_some_and(|endpoint| !endpoint.is_empty());
        let wanted = named("OTEL_EXPORTER_OTLP_ENDPOINT") || named("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        Ok(Spans { wanted })
    }

    pub(crate) fn layer(&self) -> Option<Identity> {
        None
    }

    /// What the log should say.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        self.wanted.then_some("this ibid was built without `otlp`: no spans are sent")
    }
}
