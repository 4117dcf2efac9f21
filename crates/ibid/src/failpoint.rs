//! Places where a test can let the process die, fail, wait or lose a reply. Compiled only with the feature
//! `failpoints`; without it `failpoint_off.rs` stands here and does nothing.
//!
//! `IBID_FAILPOINTS="finish.before=1*return(kill);call.after=2*off->1*return(pause:3000)"`: a place, and what the crate
//! `fail-parallel` reads as actions. What `return(…)` may say: `kill` (SIGKILL to itself), `error`, `lost` (what was sent
//! has happened, its reply never came) and `pause:MS`.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fail_parallel::{FailPointRegistry, cfg, eval};

/// What happens at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    /// Nothing.
    Go,
    /// It fails.
    Error,
    /// It has happened, and nobody is told.
    Lost,
}

/// Comes to a place.
pub(crate) async fn at(place: &'static str) -> Hit {
    match eval(REGISTRY.clone(), place, |said| said.unwrap_or_default()).as_deref() {
        None => Hit::Go,
        Some("error") => Hit::Error,
        Some("lost") => Hit::Lost,
        Some("kill") => {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            std::future::pending().await
        }
        Some(other) => {
            let pause = other.strip_prefix("pause:").and_then(|ms| ms.parse().ok());
            let pause = pause.unwrap_or_else(|| panic!("nobody knows the failpoint action `{other}`"));
            tokio::time::sleep(Duration::from_millis(pause)).await;
            Hit::Go
        }
    }
}

static REGISTRY: LazyLock<Arc<FailPointRegistry>> = LazyLock::new(|| {
    let registry = Arc::new(FailPointRegistry::new());
    let wanted = std::env::var("IBID_FAILPOINTS").unwrap_or_default();
    for point in wanted.split(';').filter(|point| !point.is_empty()) {
        let (place, actions) = point.split_once('=').unwrap_or((point, ""));
        assert!(PLACES.contains(&place), "nobody knows the failpoint `{place}`");
        cfg(registry.clone(), place, actions)
            .unwrap_or_else(|error| panic!("the failpoint `{point}`: {error}"));
    }
    registry
});

/// Every place, so that a test can't name one that is never reached.
const PLACES: [&str; 12] = [
    "begin.before",
    "begin.after",
    "phase.before",
    "phase.after",
    "outside.after",
    "finish.before",
    "finish.after",
    "enqueue.after",
    "claim.after",
    "call.after",
    "record.before",
    "done.after",
];
