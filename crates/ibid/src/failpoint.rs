//! Failpoints: named points at which a test can make the process die, fail, wait or lose a reply. Without the feature
//! `failpoints` they do nothing.
//!
//! `IBID_FAILPOINTS="finish.before=1*return(kill);call.after=2*off->1*return(pause:3000)"` arms two of them: each entry is the
//! name of a failpoint and its actions, in the syntax of the crate `fail-parallel`. `return(…)` takes `kill` (SIGKILL to
//! itself), `stop` (SIGSTOP: the process keeps its connections and locks and does nothing until it gets SIGCONT), `error`,
//! `lost` (the operation has happened, and its reply never arrives) and `pause:MS` (only this task waits). The log shows which
//! failpoints are armed and hit, so that a test can tell one that was passed from one that was never reached.
//!
//! `IBID_NEXT_SCHEMA=1` makes the process know one more step of the schema, as a later release may have it.

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub(crate) use imp::knows_next_schema;
pub(crate) use imp::{announce, at};

/// The effect of a failpoint on the code that passes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    /// The code continues normally.
    Go,
    /// The operation fails without having happened.
    Error,
    /// The operation has happened, and its reply is lost.
    Lost,
}

#[cfg(not(feature = "failpoints"))]
mod imp {
    use super::Hit;

    pub(crate) fn announce() {}

    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(crate) fn knows_next_schema() -> bool {
        false
    }

    pub(crate) async fn at(_name: &'static str) -> Hit {
        Hit::Go
    }
}

#[cfg(feature = "failpoints")]
mod imp {
    use std::sync::{Arc, LazyLock};
    use std::time::Duration;

    use fail_parallel::{FailPointRegistry, cfg, eval};
    use rustix::process::{Signal, getpid, kill_process};

    use super::Hit;

    /// Logs the armed failpoints.
    pub(crate) fn announce() {
        if let Ok(armed) = std::env::var("IBID_FAILPOINTS") {
            LazyLock::force(&REGISTRY);
            tracing::warn!(armed, "failpoints are armed");
        }
    }

    /// Returns whether this process plays a later release.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(crate) fn knows_next_schema() -> bool {
        std::env::var_os("IBID_NEXT_SCHEMA").is_some()
    }

    /// Passes the failpoint of this name, and runs the action that is armed there.
    pub(crate) async fn at(name: &'static str) -> Hit {
        assert!(FAILPOINTS.contains(&name), "the failpoint `{name}` is not in the list");
        let Some(action) = eval(REGISTRY.clone(), name, |action| action.unwrap_or_default()) else {
            return Hit::Go;
        };
        tracing::warn!(failpoint = name, action, "a failpoint is hit");
        match &*action {
            "error" => Hit::Error,
            "lost" => Hit::Lost,
            "kill" => {
                signal(Signal::KILL);
                std::future::pending().await
            }
            "stop" => {
                signal(Signal::STOP);
                // Another thread may take the signal. Until then this thread must not run past the failpoint.
                while is_stop_pending() {}
                Hit::Go
            }
            other => {
                let pause = other.strip_prefix("pause:").and_then(|ms| ms.parse().ok());
                let pause = pause.unwrap_or_else(|| panic!("unknown failpoint action `{other}`"));
                tokio::time::sleep(Duration::from_millis(pause)).await;
                Hit::Go
            }
        }
    }

    fn signal(signal: Signal) {
        // A process may always signal itself.
        let _ = kill_process(getpid(), signal);
    }

    /// Returns whether a SIGSTOP of the process is pending. The kernel stops all threads as one takes it.
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
            let (name, actions) = point.split_once('=').unwrap_or((point, ""));
            assert!(
                FAILPOINTS.contains(&name),
                "unknown failpoint `{name}`; known: {}",
                FAILPOINTS.join(" ")
            );
            cfg(registry.clone(), name, actions)
                .unwrap_or_else(|error| panic!("the failpoint `{point}`: {error}"));
        }
        registry
    });

    /// Every failpoint, so that a test cannot name one that is never reached. The reference application's tests read this
    /// list: a new failpoint has to be in their matrix, or they must name the test that covers it.
    const FAILPOINTS: [&str; 27] = [
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
        "copy.joined",
        "copy.closed",
        "copy.retired",
        "copy.batch",
        "copy.copied",
        "copy.compared",
        "copy.opened",
        "copy.cancelled",
    ];
}
