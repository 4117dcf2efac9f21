//! A node with a failpoint armed, and what it said of it. Needs a binary that was built with the feature `failpoints`,
//! and fails without.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::harness::Program;
use crate::world::{Node, World, eventually};

/// A node that something happens to.
pub(crate) struct Armed {
    pub(crate) node: Node,
    log: Arc<Mutex<String>>,
}

impl Armed {
    /// Starts it, `failpoints` as in `IBID_FAILPOINTS`.
    pub(crate) async fn start(world: &World, lease: &str, failpoints: &str) -> Armed {
        Armed::of(world.serve(lease, "100ms", "100ms"), failpoints).await
    }

    /// The same with a command of the story's own.
    pub(crate) async fn of(mut command: Command, failpoints: &str) -> Armed {
        command.env("IBID_FAILPOINTS", failpoints).stderr(Stdio::piped());
        let mut program = Program::of(command);
        let log = Arc::new(Mutex::new(String::new()));
        let (stderr, kept) = (program.stderr(), log.clone());
        // Ends with the program.
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("armed: {line}");
                let mut kept = kept.lock().expect("nobody panics with it");
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        let armed = Armed { node: Node(program), log };
        armed.says("failpoints are armed").await;
        armed
    }

    /// Waits until its log holds this.
    pub(crate) async fn says(&self, what: &str) {
        let wanted = format!("the log says `{what}`; was the binary built with the feature `failpoints`?");
        eventually(&wanted, async || self.said(what).then_some(())).await;
    }

    pub(crate) fn said(&self, what: &str) -> bool {
        self.log.lock().expect("nobody panics with it").contains(what)
    }

    /// Waits until it has killed itself.
    pub(crate) async fn dies(&mut self) {
        let ended = eventually("the node kills itself", || std::future::ready(self.node.0.ended())).await;
        assert_eq!(ended.signal(), Some(9), "{ended}");
    }

    /// Waits until it has stopped itself.
    pub(crate) async fn stops(&self) {
        eventually("the node stops itself", async || self.node.0.is_paused().then_some(())).await;
    }
}
