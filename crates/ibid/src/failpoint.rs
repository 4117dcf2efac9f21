//! Places where a test can let the process die, fail, wait or lose a reply. Compiled only with the feature
//! `failpoints`; without it `failpoint_off.rs` stands here and does nothing.
//!
//! `IBID_FAILPOINTS="finish.before=1*return(kill);call.after=2*off->1*return(pause:3000)"`: a place, and what the crate
//! `fail-parallel` reads as actions. What `return(…)` may say: `kill` (SIGKILL to itself), `stop` (SIGSTOP: it holds what
//! it holds and does nothing until somebody sends SIGCONT), `error`, `lost` (what was sent has happened, its reply never
//! came) and `pause:MS` (this task alone waits). What is armed and what is hit is in the log, so that a test can tell a
//! place that was passed from one that was never reached.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fail_parallel::{FailPointRegistry, cfg, eval};
use rustix::process::{Signal, getpid, kill_process};

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

/// Says what is armed.
pub(crate) fn announce() {
    if let Ok(armed) = std::env::var("IBID_FAILPOINTS") {
        LazyLock::force(&REGISTRY);
        tracing::warn!(armed, "failpoints are armed");
    }
}

/// Comes to a place.
pub(crate) async fn at(place: &'static str) -> Hit {
    assert!(PLACES.contains(&place), "the failpoint `{place}` is not in the list");
    let Some(action) = eval(REGISTRY.clone(), place, |said| said.unwrap_or_default()) else { return Hit::Go };
    tracing::warn!(place, action, "a failpoint is hit");
    match &*action {
        "error" => Hit::Error,
        "lost" => Hit::Lost,
        "kill" => {
            signal(Signal::KILL);
            std::future::pending().await
        }
        "stop" => {
            signal(Signal::STOP);
            // Another thread may be the one that takes the signal. Until it has, this one would go on past its point.
            while is_stop_pending() {}
            Hit::Go
        }
        other => {
            let pause = other.strip_prefix("pause:").and_then(|ms| ms.parse().ok());
            let pause = pause.unwrap_or_else(|| panic!("nobody knows the failpoint action `{other}`"));
            tokio::time::sleep(Duration::from_millis(pause)).await;
            Hit::Go
        }
    }
}

fn signal(signal: Signal) {
    // Nobody may forbid a process to signal itself.
    let _ = kill_process(getpid(), signal);
}

/// Whether the process has yet to take a SIGSTOP. The kernel stops all threads as one takes it.
fn is_stop_pending() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    pending.is_some_and(|mask| mask >> (Signal::STOP.as_raw() - 1) & 1 == 1)
}

static REGISTRY: LazyLock<Arc<FailPointRegistry>> = LazyLock::new(|| {
    let registry = Arc::new(FailPointRegistry::new());
    let wanted = std::env::var("IBID_FAILPOINTS").unwrap_or_default();
    for point in wanted.split(';').filter(|point| !point.is_empty()) {
        let (place, actions) = point.split_once('=').unwrap_or((point, ""));
        assert!(
            PLACES.contains(&place),
            "nobody knows the failpoint `{place}`: there are {}",
            PLACES.join(" ")
        );
        cfg(registry.clone(), place, actions)
            .unwrap_or_else(|error| panic!("the failpoint `{point}`: {error}"));
    }
    registry
});

/// Every place, so that a test can't name one that is never reached. The reference application's tests ask for this list:
/// a new place has to be in their matrix too, or it must be said which test has it.
const PLACES: [&str; 19] = [
    "begin.before",
    "begin.after",
    "phase.before",
    "phase.after",
    "outside.after",
    "tell.before",
    "tell.after",
    "reserve.after",
    "finish.before",
    "finish.after",
    "enqueue.after",
    "deliver.before",
    "deliver.after",
    "claim.before",
    "claim.after",
    "call.after",
    "record.before",
    "done.after",
    "hear.kept",
];
