//! The process of a database server: one that ends with the test that started it, or one that all tests of a run share.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A server process with the thread that started it and waits for its end. The kernel ends the server when that thread
/// dies, so it must not be a pool thread.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    pid: Pid,
    keeper: JoinHandle<()>,
}

impl ServerProcess {
    /// Starts a server that logs to the file `log` in its directory, and waits until `is_ready`, which gets the pid. Returns
    /// `None` if it ended instead.
    pub(crate) fn start(
        mut server: Command,
        directory: &Path,
        is_ready: impl Fn(i32) -> bool,
    ) -> Option<ServerProcess> {
        let (child_pid, pid) = std::sync::mpsc::channel();
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log_file(directory));
        let keeper = thread::Builder::new().name("server".to_owned()).spawn(move || {
            let mut child: Child = server.spawn().expect("the server's program runs");
            let _ = child_pid.send(child.id());
            let _ = child.wait();
        });
        let keeper = keeper.expect("a thread starts");
        let id = pid.recv().expect("the thread tells the pid").cast_signed();
        let process = ServerProcess { pid: Pid::from_raw(id).expect("a pid is not zero"), keeper };
        let until = Instant::now() + READY_WITHIN;
        while !is_ready(id) {
            if process.keeper.is_finished() {
                return None;
            }
            assert!(Instant::now() < until, "the server is not ready:\n{}", log(directory));
            thread::sleep(LOOK_EVERY);
        }
        Some(process)
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends it a signal, if it has not ended by itself.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid, signal);
    }

    /// Stops it without ending it, and returns once none of its threads runs any more. A thread on another core runs on for a
    /// moment after the signal, and may still answer.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let until = Instant::now() + READY_WITHIN;
        while !is_stopped(self.pid) {
            assert!(Instant::now() < until, "the server does not stop");
            thread::yield_now();
        }
    }

    /// Sends it a signal and waits for its end.
    pub(crate) fn end(self, signal: Signal) {
        self.signal(signal);
        let _ = self.keeper.join();
    }
}

/// Returns whether all threads of a process are stopped, or the process has ended.
fn is_stopped(pid: Pid) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) else { return true };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state is behind the name, which is in parentheses and may have any character.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.is_none_or(|state| matches!(state, 'T' | 't' | 'Z' | 'X'))
    })
}

/// Returns the port of the server that the tests of this run share. The first test fills its directory and starts it with
/// `start`, which returns `None` if it did not get its port; the others wait for the lock.
pub(crate) fn port_of_run(directory: &Path, fill: impl FnOnce(), start: impl Fn() -> Option<u16>) -> u16 {
    let lock = fs::File::create(directory.join("lock")).expect("a lock file");
    lock.lock().expect("a lock");
    let file = directory.join("port");
    if let Ok(port) = fs::read_to_string(&file) {
        return port.parse().expect("a port");
    }
    fill();
    // Another process may take the port between our check and the server's bind.
    let port = (0..PORT_TRIES).find_map(|_| start());
    let port = port.unwrap_or_else(|| panic!("the server did not start:\n{}", log(directory)));
    fs::write(file, port.to_string()).expect("a file in our own directory");
    port
}

/// Starts a server together with a keeper process, which stops it and removes its directory as soon as the runner has
/// ended, for whatever reason. Returns whether the server became ready; otherwise it ended.
#[expect(clippy::zombie_processes, reason = "the keeper outlives the test that starts it")]
pub(crate) fn start_kept(
    runner: i32,
    directory: &Path,
    server: &Command,
    is_ready: impl Fn() -> bool,
) -> bool {
    let mut keeper = Command::new("bash");
    keeper.args(["-c", KEEPER, "keeper", &runner.to_string()]).arg(directory);
    keeper.arg(server.get_program()).args(server.get_args());
    // The runner kills the process group of a test that takes too long. The keeper must survive that.
    keeper.process_group(0).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    keeper.env("LC_ALL", "C").env("TZ", "UTC").current_dir("/");
    keeper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log_file(directory));
    let mut keeper = keeper.spawn().expect("bash runs");
    let until = Instant::now() + READY_WITHIN;
    while !is_ready() {
        if keeper.try_wait().expect("a child can be asked").is_some() {
            return false;
        }
        assert!(Instant::now() < until, "the server is not ready: see {}", directory.display());
        thread::sleep(LOOK_EVERY);
    }
    true
}

/// Returns the pid of the test runner, which is the parent of each test's process.
pub(crate) fn runner() -> i32 {
    rustix::process::getppid().expect("nextest is our parent").as_raw_nonzero().get()
}

/// Returns the log of the server in this directory.
pub(crate) fn log(directory: &Path) -> String {
    fs::read_to_string(directory.join("log")).unwrap_or_default()
}

fn log_file(directory: &Path) -> fs::File {
    fs::File::options().create(true).append(true).open(directory.join("log")).expect("a log file")
}

/// Runs the server for as long as the runner lives.
const KEEPER: &str = r#"
runner=$1 directory=$2
shift 2
"$@" &
server=$!
tail --pid="$runner" --sleep-interval=0.1 --follow /dev/null &
watch=$!
wait -n
kill -QUIT "$server"
kill "$watch"
wait
[ -e "/proc/$runner" ] || rm -rf "$directory"
"#;

/// Loopback address of every server.
pub(crate) const HOST: &str = "127.0.0.1";

/// Starts before a failure counts: another process may take the port first.
pub(crate) const PORT_TRIES: u32 = 3;

/// Recovery of a small database takes a second on a busy machine; after a minute it will not succeed.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(60);

/// A fraction of what a start takes.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(5);
