//! A real server program for one test, with a separate folder and port. It ends when its owner is dropped.
//!
//! All calls block. A program is started on the test's thread, and the test's own servers run on other threads.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A program and its command line.
#[derive(Clone, Debug)]
pub struct Launch {
    /// A name that is looked up in `PATH` (and where Debian installs servers), or a path.
    pub program: PathBuf,
    /// Arguments of the command line.
    pub args: Vec<OsString>,
    /// Variables of its environment; of ours it gets only `PATH`.
    pub env: Vec<(String, OsString)>,
}

impl Launch {
    /// A program with these arguments.
    pub fn new<I>(program: impl Into<PathBuf>, args: I) -> Launch
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        Launch { program: program.into(), args: args.into_iter().map(Into::into).collect(), env: Vec::new() }
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Launch {
        self.env.push((name.to_owned(), value.into()));
        self
    }
}

/// A running server program; killed when dropped.
#[derive(Debug)]
pub struct Program {
    pid: Pid,
    /// The thread that started the program and waits for its end. The kernel ends the program when that thread dies, so it
    /// must not be a pool thread.
    keeper: Option<JoinHandle<()>>,
    addr: SocketAddr,
    folder: tempfile::TempDir,
}

impl Program {
    /// Starts a program on a free port and waits until it takes connections. `launch` gets an empty folder and the port,
    /// and writes the program's configuration to the folder.
    ///
    /// # Panics
    ///
    /// If the program is not installed, ends by itself, or takes no connections in time.
    pub fn start(launch: impl Fn(&Path, u16) -> Launch) -> Program {
        let mut output = String::new();
        // Another process may take the port between the check and the program's bind.
        for _ in 0..START_TRIES {
            let folder = tempfile::tempdir().expect("a folder can be made");
            let port = free_port();
            match Program::try_start(launch(folder.path(), port), folder, port) {
                Ok(program) => return program,
                Err(log) => output = log,
            }
        }
        panic!("the program ended instead of taking connections:\n{output}");
    }

    fn try_start(launch: Launch, folder: tempfile::TempDir, port: u16) -> Result<Program, String> {
        let log = folder.path().join("output");
        let output = fs::File::create(&log).expect("a log file");
        let program = find(&launch.program);
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program).args(&launch.args);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).envs(launch.env);
        command.current_dir(folder.path()).stdin(Stdio::null());
        command.stdout(output.try_clone().expect("a second handle")).stderr(output);
        let (sender, receiver) = std::sync::mpsc::channel();
        let keeper = thread::spawn(move || {
            let mut child = command.spawn().expect("`setpriv` runs");
            let _ = sender.send(child.id());
            let _ = child.wait();
        });
        let id = receiver.recv().expect("the thread sends the pid").cast_signed();
        let pid = Pid::from_raw(id).expect("a pid is not zero");
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let running = Program { pid, keeper: Some(keeper), addr, folder };
        let until = Instant::now() + READY_WITHIN;
        while TcpStream::connect(addr).is_err() {
            if running.has_ended() {
                return Err(running.output());
            }
            assert!(Instant::now() < until, "the program takes no connections:\n{}", running.output());
            thread::sleep(LOOK_EVERY);
        }
        Ok(running)
    }

    /// Returns the address that it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://address`, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns its folder, which is removed with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns its output on stdout and stderr.
    pub fn output(&self) -> String {
        fs::read_to_string(self.folder.path().join("output")).unwrap_or_default()
    }

    fn has_ended(&self) -> bool {
        self.keeper.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let Some(keeper) = self.keeper.take() else { return };
        if !keeper.is_finished() {
            // It may end by itself at this moment, and then there is no process to signal.
            let _ = kill_process(self.pid, Signal::KILL);
        }
        let _ = keeper.join();
    }
}

/// Returns the directory that `scripts/setup` and `scripts/chains` install programs from package registries to.
///
/// # Panics
///
/// If the running program was not built into a directory `target`.
pub fn tools() -> PathBuf {
    let exe = std::env::current_exe().expect("the running program has a path");
    let target = exe.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == "target"));
    target.unwrap_or_else(|| panic!("`{}` is in no directory `target`", exe.display())).join("tools")
}

/// Returns a port that is not in use, below those that the kernel gives to outgoing connections: a server that is
/// restarted must find its port free.
pub fn free_port() -> u16 {
    let free = || {
        let random = getrandom::u32().expect("the system gives random bytes");
        let port = PORTS.start + (random % u32::from(PORTS.end - PORTS.start)) as u16;
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok().then_some(port)
    };
    (0..PORT_LOOKS).find_map(|_| free()).expect("a free port on the loopback interface")
}

/// Returns the path of an installed program. Panics if it is missing, because a test that needs it must not pass
/// without it.
pub(crate) fn find(program: &Path) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian installs servers in directories that are not in the `PATH` of every user.
    let folders = std::env::split_paths(&path).chain(SERVER_FOLDERS.map(PathBuf::from));
    // Joining an absolute path gives that path.
    let file_path = folders.map(|folder| folder.join(program)).find(|file| file.is_file());
    file_path.unwrap_or_else(|| {
        panic!(
            "`{}` is not installed: run scripts/setup (scripts/chains installs the rest)",
            program.display()
        )
    })
}

const SERVER_FOLDERS: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/sbin"];

const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// Of 20,000 ports some dozens are taken; to miss this often, most would have to be.
const PORT_LOOKS: u32 = 100;

/// Starts of a program before its exit counts as its own failure.
const START_TRIES: u32 = 3;

/// Far above what a loaded two-core machine needs for the slowest of them.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Interval between two checks: a fraction of what a start takes.
const LOOK_EVERY: Duration = Duration::from_millis(5);
