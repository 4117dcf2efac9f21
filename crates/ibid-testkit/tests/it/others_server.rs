//! Waits for the end of a server that another process has started.

use std::io::{BufRead, BufReader};

/// A server that another process has started.
///
/// A handle on the process itself, because its pid may be reused once it has ended.
pub(crate) struct OthersServer(rustix::fd::OwnedFd);

impl OthersServer {
    /// Reads the server's pid from the other process's output.
    pub(crate) fn of(process: &mut std::process::Child) -> OthersServer {
        let lines = BufReader::new(process.stdout.take().expect("it was piped")).lines();
        let pid = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("pid ").map(str::to_owned));
        let pid = pid.expect("the server runs").parse().expect("a number");
        let pid = rustix::process::Pid::from_raw(pid).expect("a pid is not zero");
        let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
        OthersServer(process.expect("it runs"))
    }

    pub(crate) fn ends(&self) {
        let mut ended = [rustix::event::PollFd::new(&self.0, rustix::event::PollFlags::IN)];
        let minute = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
        let ended = rustix::event::poll(&mut ended, Some(&minute));
        assert_eq!(ended.expect("a poll"), 1, "the server still runs");
    }
}
