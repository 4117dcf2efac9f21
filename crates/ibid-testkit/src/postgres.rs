//! Real PostgreSQL servers for tests: one that all tests of a run share, and a separate one for a test that stops the
//! server or changes its settings.
//!
//! A separate server has its own data directory and port and is removed with the test. Each server flushes as a
//! production server does, because durability is part of what is tested. Its files are in memory if there is room: no
//! test cuts the machine's power, and no test has to wait for a disk. All calls block; a start takes some tenths of a
//! second. It must not know what ibid stores in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use self::install::Install;
use crate::program::free_port;
use crate::server_files::{Medium, is_in_memory, must};
use crate::server_process::{self, HOST, LOOK_EVERY, PORT_TRIES, READY_WITHIN, ServerProcess};

mod install;
mod pair;
mod shared;

pub use self::install::PostgresRelease;
pub use self::pair::PostgresPair;

/// A server that runs until it is dropped, and never longer than the process that started it; or a handle on the
/// server that all tests share.
#[derive(Debug)]
pub struct Postgres {
    install: Install,
    directory: PathBuf,
    port: u16,
    settings: Vec<(String, String)>,
    /// The database of [`Postgres::url`], created on first use.
    database: OnceLock<String>,
    /// Every database created through this handle.
    databases: Mutex<Vec<String>>,
    is_shared: bool,
    /// `None` while it is stopped, and for a server that we must not stop.
    running: Option<ServerProcess>,
}

impl Postgres {
    /// Creates a database on the server that all tests of this run share. It is dropped with this handle, and so is every
    /// other database that [`Postgres::create_database`] made.
    ///
    /// Roles, settings and statistics views belong to the whole server: a test that creates, changes or counts those, or
    /// stops the server, starts a separate one.
    pub fn shared() -> Postgres {
        shared::handle()
    }

    /// Starts a separate server for the test, with small settings.
    pub fn start() -> Postgres {
        Postgres::start_with(&[])
    }

    /// Like [`Self::start`], with additional settings for `postgresql.conf`.
    pub fn start_with(settings: &[(&str, &str)]) -> Postgres {
        Postgres::start_with_files(settings, &[])
    }

    /// Like [`Self::start_with`], with files in its data directory that only the server may read: keys, certificates.
    pub fn start_with_files(settings: &[(&str, &str)], files: &[(&str, &str)]) -> Postgres {
        Postgres::start_at(PostgresRelease::System, Medium::Memory, settings, files)
    }

    /// Starts a server whose files are on disk, for benchmarks.
    pub fn start_on_disk(settings: &[(&str, &str)]) -> Postgres {
        Postgres::start_at(PostgresRelease::System, Medium::Disk, settings, &[])
    }

    /// Starts a server of a release, with additional settings.
    pub fn start_release(release: PostgresRelease, settings: &[(&str, &str)]) -> Postgres {
        Postgres::start_at(release, Medium::Memory, settings, &[])
    }

    fn start_at(
        release: PostgresRelease,
        medium: Medium,
        settings: &[(&str, &str)],
        files: &[(&str, &str)],
    ) -> Postgres {
        let install = Install::find(release);
        let directory = install.new_directory(medium);
        install.fill(&directory, medium);
        for (name, text) in files {
            install.put(&data(&directory).join(name), text);
        }
        Postgres::run(install, directory, settings)
    }

    /// Starts a standby that follows this server. This server's settings say what a commit waits for: set
    /// `synchronous_standby_names` to make the standby synchronous.
    pub fn standby(&self, name: &str, settings: &[(&str, &str)]) -> Postgres {
        let directory = self.install.new_directory(Medium::Memory);
        let source =
            format!("host={HOST} port={} user={USER} dbname={USER} application_name={name}", self.port);
        let mut backup = self.install.as_owner("pg_basebackup");
        backup.args(["--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync"]);
        must(backup.arg("--dbname").arg(source).arg("--pgdata").arg(data(&directory)));
        Postgres::run(self.install.clone(), directory, settings)
    }

    fn run(install: Install, directory: PathBuf, settings: &[(&str, &str)]) -> Postgres {
        let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let mut server = Postgres {
            install,
            directory,
            port: 0,
            settings,
            database: OnceLock::from("postgres".to_owned()),
            databases: Mutex::default(),
            is_shared: false,
            running: None,
        };
        // Another process may take a port between our check and the server's bind.
        for _ in 0..PORT_TRIES {
            server.port = free_port();
            if server.try_start() {
                return server;
            }
        }
        panic!("PostgreSQL did not start:\n{}", server.log());
    }

    /// Returns the URL of the test's first database: a new one on the shared server, `postgres` on a separate one.
    pub fn url(&self) -> String {
        self.url_for(self.database())
    }

    /// Returns the name of that database.
    pub fn database(&self) -> &str {
        self.database.get_or_init(|| self.create_database())
    }

    /// Returns the URL of a database.
    pub fn url_for(&self, database: &str) -> String {
        format!("postgres://{USER}@{HOST}:{}/{database}", self.port)
    }

    /// Returns the port that it listens on, on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Creates an empty database that no other test uses, and returns its name.
    pub fn create_database(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // In memory a copy of the files is cheap. On a disk each file would be flushed, so there the log is cheaper.
        let strategy = if is_in_memory(&self.directory) { "file_copy" } else { "wal_log" };
        self.sql("postgres", &format!("create database {name} strategy {strategy}"));
        self.databases.lock().expect("no thread panics with it").push(name.clone());
        name
    }

    /// Runs `sql` in `psql` and returns its output: a line per row, `|` between columns. Panics if the server refuses.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        self.try_sql(database, sql).unwrap_or_else(|said| panic!("`{sql}` was refused: {said}"))
    }

    /// Like [`Self::sql`], but returns the complaint of `psql` instead of a panic.
    pub fn try_sql(&self, database: &str, sql: &str) -> Result<String, String> {
        let mut psql = self.install.as_ourselves("psql");
        psql.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set=ON_ERROR_STOP=1"]);
        let psql = psql.arg("--command").arg(sql).arg(self.url_for(database)).stdin(Stdio::null());
        let output = psql.output().expect("psql runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Changes a setting at run time, and returns once new connections have it.
    pub fn set(&self, name: &str, value: &str) {
        self.must_be_ours();
        self.sql("postgres", &format!("alter system set {name} = '{value}'"));
        self.sql("postgres", "select pg_reload_conf()");
        let until = Instant::now() + READY_WITHIN;
        while self.sql("postgres", &format!("show {name}")) != value {
            assert!(Instant::now() < until, "`{name}` does not become `{value}`:\n{}", self.log());
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Starts a stopped server again, on the port it had.
    pub fn start_again(&mut self) {
        self.must_be_ours();
        assert!(self.running.is_none(), "the server runs already");
        let until = Instant::now() + READY_WITHIN;
        // A connection of another process may hold the port for a moment.
        while !self.try_start() {
            assert!(Instant::now() < until, "PostgreSQL did not start again:\n{}", self.log());
        }
    }

    /// Ends it at once, as a crash would: nothing is flushed, every connection breaks.
    pub fn stop_immediate(&mut self) {
        self.end(Signal::QUIT);
    }

    /// Sends `kill -9` to the server and to each of its processes: no cleanup, and no goodbye to clients.
    pub fn kill(&mut self) {
        self.must_be_ours();
        let Some(running) = self.running.take() else { return };
        // A stopped server starts no more processes.
        running.stop();
        // Handles on the processes themselves: a pid may be reused once its process has ended.
        let open = |child| pidfd_open(child, PidfdFlags::empty()).ok();
        let children: Vec<_> = children_of(running.pid()).into_iter().filter_map(open).collect();
        running.end(Signal::KILL);
        for child in &children {
            // It may have ended by itself, because its server is gone.
            let _ = pidfd_send_signal(child, Signal::KILL);
        }
        // Until the last one has ended it may still send buffered data.
        for child in &children {
            let patience = Timespec { tv_sec: READY_WITHIN.as_secs().cast_signed(), tv_nsec: 0 };
            let ended = poll(&mut [PollFd::new(child, PollFlags::IN)], Some(&patience));
            assert_eq!(ended.expect("a poll"), 1, "a process that was killed ends");
        }
    }

    /// Shuts it down in order and aborts running transactions.
    pub fn stop_fast(&mut self) {
        self.end(Signal::INT);
    }

    /// Crashes the server and recovers it.
    pub fn restart(&mut self) {
        self.stop_immediate();
        self.start_again();
    }

    /// Promotes a standby to primary, and returns once it takes writes.
    pub fn promote(&self) {
        assert_eq!(self.sql("postgres", "select pg_promote(true, 60)"), "t", "the standby is promoted");
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        server_process::log(&self.directory)
    }

    fn drop_databases(&self) {
        let mut psql = self.install.as_ourselves("psql");
        psql.args(["--no-psqlrc", "--quiet"]).arg(self.url_for("postgres"));
        for name in self.databases.lock().expect("no thread panics with it").iter() {
            // One command each: a database cannot be dropped within a transaction.
            psql.args(["--command", &format!("drop database {name} with (force)")]);
        }
        // A database that is left over ends with the server.
        let _ = psql.stdin(Stdio::null()).output();
    }

    fn must_be_ours(&self) {
        assert!(!self.is_shared, "other tests use this server: start one of the test's own");
    }

    fn end(&mut self, signal: Signal) {
        self.must_be_ours();
        let Some(running) = self.running.take() else { return };
        running.end(signal);
    }

    /// Starts it and waits until it takes connections; `false` if it ended instead.
    fn try_start(&mut self) -> bool {
        let mut postgres = self.install.as_owner_while_we_live("postgres");
        postgres.arg("-D").arg(data(&self.directory));
        for (name, value) in self.all_settings() {
            postgres.arg("-c").arg(format!("{name}={value}"));
        }
        let is_ready = |pid| is_ready(&self.directory, Some(pid));
        self.running = ServerProcess::start(postgres, &self.directory, is_ready);
        self.running.is_some()
    }

    fn all_settings(&self) -> impl Iterator<Item = (&str, String)> {
        let theirs = self.settings.iter().map(|(name, value)| (name.as_str(), value.clone()));
        settings_at(self.port).into_iter().chain(theirs)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.is_shared {
            // On a disk a drop waits until all is flushed, and the server's end removes the databases soon enough.
            if is_in_memory(&self.directory) {
                self.drop_databases();
            }
            return;
        }
        self.stop_immediate();
        // The next test that starts a server removes the rest.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Returns the settings of every server.
fn settings_at(port: u16) -> [(&'static str, String); 5] {
    [
        ("port", port.to_string()),
        ("listen_addresses", HOST.to_owned()),
        ("unix_socket_directories", String::new()),
        // Tests write little, and two servers may run at a time.
        ("shared_buffers", "32MB".to_owned()),
        // Few tests read the log, but it explains failures.
        ("log_min_messages", "warning".to_owned()),
    ]
}

/// Returns whether the server reports itself ready, in the file that `pg_ctl` reads: a working connection would only
/// show that some process listens on this port. `pid` is the server's, if it is known.
fn is_ready(directory: &Path, pid: Option<i32>) -> bool {
    let file = fs::read_to_string(data(directory).join("postmaster.pid")).unwrap_or_default();
    let line = |index: usize| file.lines().nth(index).unwrap_or_default().trim();
    pid.is_none_or(|pid| line(0) == pid.to_string()) && matches!(line(7), "ready" | "standby")
}

/// Returns the processes that this one started and that still run.
fn children_of(pid: Pid) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").expect("a list of processes").flatten();
    let child = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        // A process that ended meanwhile has no file.
        let line = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The line is `pid (name) state parent …`, and the name may contain any character.
        let parent = line.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        (Pid::from_raw(parent)? == pid).then(|| Pid::from_raw(number))?
    };
    processes.filter_map(child).collect()
}

fn data(directory: &Path) -> PathBuf {
    directory.join("data")
}

/// The superuser of every server.
const USER: &str = "postgres";
