//! One server for all tests of a run, with separate databases for each test.
//!
//! A separate server costs a test a copy of the data directory, a start and a stop. A database costs a tenth of that.
//! Under `cargo nextest` each test is a process, so the first one that needs the server starts it together with a keeper
//! process. The keeper stops the server and removes its files as soon as the runner has ended, for whatever reason.
//! Elsewhere the server belongs to the process, like any other.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Instant;

use super::install::Install;
use super::{LOOK_EVERY, PORT_TRIES, Postgres, READY_WITHIN, data, is_ready, settings_at};
use crate::program::free_port;

/// Returns a handle on the shared server.
pub(super) fn handle() -> Postgres {
    let (install, directory, port) = match std::env::var("NEXTEST_RUN_ID") {
        Ok(run) => of_run(&run),
        Err(_) => of_process(),
    };
    Postgres {
        install,
        directory,
        port,
        settings: Vec::new(),
        database: OnceLock::new(),
        databases: Mutex::default(),
        is_shared: true,
        running: None,
    }
}

/// Returns the server of this process. It ends with the process; the next process that starts a server removes its files.
fn of_process() -> (Install, PathBuf, u16) {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    let server = SERVER.get_or_init(|| Postgres::start_with(&SETTINGS));
    (server.install.clone(), server.directory.clone(), server.port)
}

/// Returns the server of this run of nextest, our parent. The first test starts it; the others wait for the lock.
fn of_run(run: &str) -> (Install, PathBuf, u16) {
    let install = Install::find();
    let runner = rustix::process::getppid().expect("nextest is our parent").as_raw_nonzero().get();
    let directory = install.shared_directory(runner, run);
    let lock = fs::File::create(directory.join("lock")).expect("a lock file");
    lock.lock().expect("a lock");
    let file = directory.join("port");
    if let Ok(port) = fs::read_to_string(&file) {
        return (install, directory, port.parse().expect("a port"));
    }
    install.fill(&directory);
    // Another process may take the port between our check and the server's bind.
    let port = (0..PORT_TRIES).find_map(|_| start(&install, runner, &directory));
    let log = || fs::read_to_string(directory.join("log")).unwrap_or_default();
    let port = port.unwrap_or_else(|| panic!("PostgreSQL did not start:\n{}", log()));
    fs::write(file, port.to_string()).expect("a file in our own directory");
    (install, directory, port)
}

/// Starts the server and its keeper; `None` if the server ended instead of taking connections.
#[expect(clippy::zombie_processes, reason = "the keeper outlives the test that starts it")]
fn start(install: &Install, runner: i32, directory: &Path) -> Option<u16> {
    let port = free_port();
    let server = install.as_owner_while_we_live("postgres");
    let log = fs::File::options().create(true).append(true).open(directory.join("log"));
    let mut keeper = Command::new("bash");
    keeper.args(["-c", KEEPER, "keeper", &runner.to_string()]).arg(directory);
    keeper.arg(server.get_program()).args(server.get_args()).arg("-D").arg(data(directory));
    let settings = SETTINGS.map(|(name, value)| (name, value.to_owned()));
    for (name, value) in settings_at(port).into_iter().chain(settings) {
        keeper.arg("-c").arg(format!("{name}={value}"));
    }
    // The runner kills the process group of a test that takes too long. The keeper must survive that.
    keeper.process_group(0).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    keeper.env("LC_ALL", "C").env("TZ", "UTC").current_dir("/");
    keeper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.expect("a log file"));
    let mut keeper = keeper.spawn().expect("bash runs");
    let until = Instant::now() + READY_WITHIN;
    while !is_ready(directory, None) {
        if keeper.try_wait().expect("a child can be asked").is_some() {
            return None;
        }
        assert!(Instant::now() < until, "PostgreSQL is not ready: see {}", directory.display());
        thread::sleep(LOOK_EVERY);
    }
    Some(port)
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

/// Many tests of one process may run at once, each with a pool or two. Their databases are dropped soon, so a small
/// log is enough.
const SETTINGS: [(&str, &str); 2] = [("max_connections", "400"), ("max_wal_size", "128MB")];
