//! Starts `payments` as a separate process and ends it with the test.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use ibid_testkit::client::{Client, TestRequest, TestResponse};
use serde_json::Value;

/// A running `payments` process. Dropping it kills the process.
pub(crate) struct Program {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Program {
    /// Starts the program on a free port and waits until it prints its address.
    pub(crate) fn start(args: &[&str]) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
        command.args(args);
        Program::from_command(command)
    }

    /// Starts `command` on a free port and waits until it prints its address.
    pub(crate) fn from_command(command: Command) -> Program {
        Program::try_from_command(command)
            .unwrap_or_else(|status| panic!("it ended before it listened: {status}"))
    }

    /// Like [`Program::from_command`], but returns the exit status of a command that ends before it listens.
    pub(crate) fn try_from_command(mut command: Command) -> Result<Program, ExitStatus> {
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

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child ends");
    }

    /// Sends SIGTERM, waits for the end, and returns whether the exit code was 0.
    pub(crate) fn stop(mut self) -> bool {
        self.signal("TERM");
        self.child.wait().expect("a child ends").success()
    }

    /// Sends SIGSTOP: the process keeps its locks and connections and does nothing.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
    }

    /// Sends SIGCONT to a paused process.
    pub(crate) fn wake(&self) {
        self.signal("CONT");
    }

    /// Takes the pipe of stderr, which the command must have asked for.
    pub(crate) fn stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().expect("a pipe was asked for, once")
    }

    /// Returns the exit status if the process has ended.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be asked")
    }

    /// Returns whether the kernel has stopped the process.
    pub(crate) fn is_paused(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The state follows the program's name, which is in parentheses and may contain anything.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "a child takes a signal");
    }

    /// Sends one request on a new connection.
    pub(crate) async fn call(&self, request: &TestRequest) -> TestResponse {
        Client::connect(self.address).await.call(request).await
    }

    /// Gets one page as status and JSON, without a token.
    pub(crate) async fn get_json(&self, target: &str) -> (u16, Value) {
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

/// Longest wait for something that must happen. A lapsed claim followed by a fault costs an effect ten seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
