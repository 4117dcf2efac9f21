//! A node with an armed failpoint, and its log. The binary must have been built with the feature `failpoints`; tests fail
//! otherwise.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::fixture::{DatabaseAndProcessor, Node, wait_for};
use crate::harness::Program;

/// A node with an armed failpoint.
pub(crate) struct ArmedNode {
    pub(crate) node: Node,
    log: Arc<Mutex<String>>,
}

impl ArmedNode {
    /// Starts a node with `failpoints`, in the syntax of `IBID_FAILPOINTS`.
    pub(crate) async fn start(world: &DatabaseAndProcessor, lease: &str, failpoints: &str) -> ArmedNode {
        ArmedNode::from_command(world.serve(lease, "100ms", "100ms"), failpoints).await
    }

    /// Starts a node from `command`, with `failpoints` as in [`ArmedNode::start`].
    pub(crate) async fn from_command(mut command: Command, failpoints: &str) -> ArmedNode {
        command.env("IBID_FAILPOINTS", failpoints).stderr(Stdio::piped());
        let mut program = Program::from_command(command);
        let log = Arc::new(Mutex::new(String::new()));
        let (stderr, lines) = (program.stderr(), log.clone());
        // The thread ends with the program.
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("armed: {line}");
                let mut lines = lines.lock().expect("no panic under the lock");
                lines.push_str(&line);
                lines.push('\n');
            }
        });
        let armed = ArmedNode { node: Node(program), log };
        armed.wait_for_log("failpoints are armed").await;
        armed
    }

    /// Waits until the node has logged `text`.
    pub(crate) async fn wait_for_log(&self, text: &str) {
        let goal = format!("the log contains `{text}`; was the binary built with the feature `failpoints`?");
        wait_for(&goal, async || self.has_logged(text).then_some(())).await;
    }

    /// Returns whether the node has logged `text`.
    pub(crate) fn has_logged(&self, text: &str) -> bool {
        self.log.lock().expect("no panic under the lock").contains(text)
    }

    /// Waits until the node has killed itself.
    pub(crate) async fn wait_until_killed(&mut self) {
        let status =
            wait_for("the node kills itself", || std::future::ready(self.node.0.exit_status())).await;
        assert_eq!(status.signal(), Some(9), "{status}");
    }

    /// Waits until the node has stopped itself (SIGSTOP).
    pub(crate) async fn wait_until_stopped(&self) {
        wait_for("the node stops itself", async || self.node.0.is_paused().then_some(())).await;
    }
}
