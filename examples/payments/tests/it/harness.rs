//! Starts `payments` as a separate process and ends it with the test.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use ibid_testkit::client::{Client, TestRequest, TestResponse};
use serde_json::Value;

/// A running program.
pub(crate) struct Program {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Program {
    /// Starts it on a free port and waits until it says where.
    pub(crate) fn start(args: &[&str]) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
        command.args(args);
        Program::of(command)
    }

    /// The same, of a command that a story has changed.
    pub(crate) fn of(command: Command) -> Program {
        Program::try_of(command).unwrap_or_else(|ended| panic!("it ended before it listened: {ended}"))
    }

    /// The same, of one that may end before it listens.
    pub(crate) fn try_of(mut command: Command) -> Result<Program, ExitStatus> {
        command.args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe was asked for");
        BufReader::new(stdout).read_line(&mut line).expect("stdout can be read");
        if line.is_empty() {
            return Err(child.wait().expect("a child ends"));
        }
        let address = line.trim().strip_prefix("listening on ").and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("it said {line:?} and no address"));
        Ok(Program { child, address })
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child ends");
    }

    /// SIGTERM; says whether it ended well.
    pub(crate) fn stop(mut self) -> bool {
        self.signal("TERM");
        self.child.wait().expect("a child ends").success()
    }

    /// SIGSTOP: it holds what it holds and does nothing.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
    }

    /// SIGCONT.
    pub(crate) fn wake(&self) {
        self.signal("CONT");
    }

    /// What it says on stderr, if its command was given a pipe for that.
    pub(crate) fn stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().expect("a pipe was asked for, once")
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be asked")
    }

    /// Whether the kernel has stopped it.
    pub(crate) fn is_paused(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The name before it stands in brackets and may hold anything.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    fn signal(&self, name: &str) {
        let told = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(told.is_ok_and(|status| status.success()), "a child takes a signal");
    }

    /// One request on a connection of its own.
    pub(crate) async fn call(&self, request: &TestRequest) -> TestResponse {
        Client::connect(self.address).await.call(request).await
    }

    /// One page as JSON.
    pub(crate) async fn look(&self, target: &str) -> (u16, Value) {
        let answer = self.call(&TestRequest::get(target)).await;
        (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// When to give up on something that must happen. A lapsed claim and a fault after it cost an effect ten seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
