//! Real MariaDB servers for tests: one that all tests of a run share, and a separate one for a test that stops the server
//! or changes its settings.
//!
//! A separate server has its own data directory and port and is removed with the test. Each server flushes as a
//! production server must, its binary log included, because durability is part of what is tested. Its files are in memory
//! if there is room. All calls block; a start takes some tenths of a second. It must not know what ibid stores in it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use rustix::process::Signal;

use crate::program::{find, free_port};
use crate::server_files::{Medium, ServerFiles, is_in_memory, must, output_of, plain};
use crate::server_process::{
    self, HOST, PORT_TRIES, READY_WITHIN, ServerProcess, port_of_run, runner, start_kept,
};

/// A server that runs until it is dropped, and never longer than the process that started it; or a handle on the
/// server that all tests share.
#[derive(Debug)]
pub struct MariaDb {
    directory: PathBuf,
    port: u16,
    settings: Vec<(String, String)>,
    /// The database of [`MariaDb::url`], created on first use.
    database: OnceLock<String>,
    /// Every database created through this handle.
    databases: Mutex<Vec<String>>,
    is_shared: bool,
    /// `None` while it is stopped, and for a server that we must not stop.
    running: Option<ServerProcess>,
}

impl MariaDb {
    /// Returns a handle on the server that all tests of this run share. Its databases are dropped with this handle.
    ///
    /// Users and global variables belong to the whole server: a test that creates or changes those, or stops the server,
    /// starts a separate one.
    pub fn shared() -> MariaDb {
        let (directory, port) = match std::env::var("NEXTEST_RUN_ID") {
            Ok(run) => of_run(&run),
            Err(_) => of_process(),
        };
        let mut server = MariaDb::new(directory, &[]);
        (server.port, server.is_shared) = (port, true);
        server
    }

    /// Starts a separate server for the test.
    pub fn start() -> MariaDb {
        MariaDb::start_with(&[])
    }

    /// Like [`Self::start`], with additional settings, which override those of every server: `("sync_binlog", "0")`.
    pub fn start_with(settings: &[(&str, &str)]) -> MariaDb {
        MariaDb::start_at(Medium::Memory, settings)
    }

    /// Starts a server whose files are on disk, for benchmarks.
    pub fn start_on_disk(settings: &[(&str, &str)]) -> MariaDb {
        MariaDb::start_at(Medium::Disk, settings)
    }

    fn start_at(medium: Medium, settings: &[(&str, &str)]) -> MariaDb {
        let files = files();
        let mut server = MariaDb::new(files.new_directory(medium), settings);
        fill(&files, &server.directory);
        // Another process may take a port between our check and the server's bind.
        for _ in 0..PORT_TRIES {
            server.port = free_port();
            if server.try_start() {
                return server;
            }
        }
        panic!("MariaDB did not start:\n{}", server.log());
    }

    /// A server that does not run.
    fn new(directory: PathBuf, settings: &[(&str, &str)]) -> MariaDb {
        MariaDb {
            directory,
            port: 0,
            settings: settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
            database: OnceLock::new(),
            databases: Mutex::default(),
            is_shared: false,
            running: None,
        }
    }

    /// Returns the URL of the test's first database, which is created on first use.
    pub fn url(&self) -> String {
        self.url_for(self.database())
    }

    /// Returns the name of that database.
    pub fn database(&self) -> &str {
        self.database.get_or_init(|| self.create_database())
    }

    /// Returns the URL of a database.
    pub fn url_for(&self, database: &str) -> String {
        format!("mysql://{USER}@{HOST}:{}/{database}", self.port)
    }

    /// Returns the port that it listens on, on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Creates an empty database that no other test uses, and returns its name.
    pub fn create_database(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        self.sql("", &format!("create database {name}"));
        self.databases.lock().expect("no thread panics with it").push(name.clone());
        name
    }

    /// Runs `sql` in the client program and returns its output: a line per row, `|` between columns. An empty name
    /// selects no database. Panics if the server refuses.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        self.try_sql(database, sql).unwrap_or_else(|complaint| panic!("`{sql}` was refused: {complaint}"))
    }

    /// Like [`Self::sql`], but returns the complaint of the client program instead of a panic.
    ///
    /// # Errors
    ///
    /// The text that the client program printed, with the server's error number.
    pub fn try_sql(&self, database: &str, sql: &str) -> Result<String, String> {
        let mut client = self.client(database);
        client.arg(format!("--execute={sql}"));
        let output = client.stdin(Stdio::null()).output().expect("the client program runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().replace('\t', "|");
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Runs `sql` in a session that stays open, with its locks and its transaction, until it is dropped. Returns once the
    /// statements have run. Panics if the server refuses one.
    pub fn session(&self, database: &str, sql: &str) -> MariaDbSession {
        let mut client = self.client(database);
        client.arg("--unbuffered").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut session = MariaDbSession { client: client.spawn().expect("the client program runs") };
        let mut input = session.client.stdin.take().expect("stdin is piped");
        writeln!(input, "{sql};\nselect '{SESSION_READY}';").expect("the client program reads");
        let mut lines = BufReader::new(session.client.stdout.take().expect("stdout is piped")).lines();
        let is_ready = lines.any(|line| line.is_ok_and(|line| line == SESSION_READY));
        assert!(is_ready, "`{sql}` was refused");
        // The client program ends with its input.
        session.client.stdin = Some(input);
        session
    }

    /// Returns the command of the client program, for one database.
    fn client(&self, database: &str) -> Command {
        let mut client = plain(Command::new(find(Path::new("mariadb"))));
        client.args(["--no-defaults", "--batch", "--raw", "--skip-column-names"]);
        client.args(["--default-character-set=utf8mb4", "--protocol=tcp", "--host", HOST, "--user", USER]);
        client.arg(format!("--port={}", self.port)).arg(format!("--database={database}"));
        client
    }

    /// Starts a stopped server again, on the port it had.
    pub fn start_again(&mut self) {
        self.must_be_ours();
        assert!(self.running.is_none(), "the server runs already");
        let until = Instant::now() + READY_WITHIN;
        // A connection of another process may hold the port for a moment.
        while !self.try_start() {
            assert!(Instant::now() < until, "MariaDB did not start again:\n{}", self.log());
        }
    }

    /// Sends `kill -9` to the server: no cleanup, and no goodbye to clients.
    pub fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    /// Shuts it down in order and aborts running transactions.
    pub fn stop_fast(&mut self) {
        self.end(Signal::TERM);
    }

    /// Kills the server and recovers it.
    pub fn restart(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Stops the server's threads where they are: connections stay open, and no statement is answered.
    pub fn freeze(&self) {
        self.must_be_ours();
        self.running.as_ref().expect("a server that runs").stop();
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        self.must_be_ours();
        self.running.as_ref().expect("a server that runs").signal(Signal::CONT);
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        server_process::log(&self.directory)
    }

    /// Drops the databases of this handle. A session that is still open there, perhaps in a transaction, is ended first: the
    /// server would wait for it.
    fn drop_databases(&self) {
        for name in self.databases.lock().expect("no thread panics with it").iter() {
            let sessions = format!("select id from information_schema.processlist where db = '{name}'");
            for session in self.try_sql("", &sessions).unwrap_or_default().lines() {
                // It may have ended by itself.
                let _ = self.try_sql("", &format!("kill {session}"));
            }
            // A database that is left over ends with the server.
            let _ = self.try_sql("", &format!("set lock_wait_timeout = {DROP_WAIT_S}; drop database {name}"));
        }
    }

    fn must_be_ours(&self) {
        assert!(!self.is_shared, "other tests use this server: start one of the test's own");
    }

    fn end(&mut self, signal: Signal) {
        self.must_be_ours();
        if let Some(running) = self.running.take() {
            running.end(signal);
        }
    }

    /// Starts it and waits until it takes connections; `false` if it ended instead.
    fn try_start(&mut self) -> bool {
        let settings = self.settings.iter().map(|(name, value)| (name.as_str(), value.clone()));
        let server = server(&self.directory, self.port, settings);
        // The log has the lines of earlier starts.
        let earlier = self.log().len();
        let is_ready = |_| is_ready(&self.log()[earlier..]);
        self.running = ServerProcess::start(server, &self.directory, is_ready);
        self.running.is_some()
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        if self.is_shared {
            // On a disk a drop waits until all is flushed, and the server's end removes the databases soon enough.
            if is_in_memory(&self.directory) {
                self.drop_databases();
            }
            return;
        }
        self.kill();
        // The next test that starts a server removes the rest.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// An open session of the client program. The server ends it, and releases its locks, soon after it is dropped.
#[derive(Debug)]
pub struct MariaDbSession {
    client: Child,
}

impl Drop for MariaDbSession {
    fn drop(&mut self) {
        // The program may have ended already, with its server.
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

/// Returns the server of this process. It ends with the process; the next process that starts a server removes its files.
fn of_process() -> (PathBuf, u16) {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    let server = SERVER.get_or_init(MariaDb::start);
    (server.directory.clone(), server.port)
}

/// Returns the server of this run of nextest. The first test starts it; the others wait for it.
fn of_run(run: &str) -> (PathBuf, u16) {
    let (files, runner) = (files(), runner());
    let directory = files.shared_directory(runner, run);
    let start = || {
        let port = free_port();
        let server = server(&directory, port, []);
        start_kept(runner, &directory, &server, || is_ready(&server_process::log(&directory))).then_some(port)
    };
    let port = port_of_run(&directory, || fill(&files, &directory), start);
    (directory, port)
}

fn files() -> ServerFiles {
    ServerFiles::new("ibid-mariadb", false)
}

/// Fills the data directory of a new server with a copy of the template, because `mariadb-install-db` takes seconds.
fn fill(files: &ServerFiles, directory: &Path) {
    let version = output_of(Command::new(find(Path::new("mariadbd"))).arg("--version"));
    let version = version.expect("mariadbd tells its version").replace(|c: char| !c.is_alphanumeric(), "-");
    let template = files.template(&format!("{TEMPLATE}-{version}"), |making| {
        let mut install = plain(Command::new(find(Path::new("mariadb-install-db"))));
        install.args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"]);
        // A small log makes a small copy.
        install.arg(LOG_FILE_SIZE).args(as_root()).arg(format!("--datadir={}", making.display()));
        must(&mut install);
    });
    must(Command::new("cp").arg("-a").arg(template).arg(data(directory)));
}

/// Returns the command of a server. Later settings override earlier ones.
fn server<'a>(directory: &Path, port: u16, settings: impl IntoIterator<Item = (&'a str, String)>) -> Command {
    let mut server = Command::new("setpriv");
    server.args(["--pdeathsig", "KILL", "--"]).arg(find(Path::new("mariadbd")));
    server.args(["--no-defaults", LOG_FILE_SIZE]).args(as_root());
    server.arg(format!("--datadir={}", data(directory).display())).arg(format!("--port={port}"));
    // A server that starts deletes the temporary tables of others in a directory that they share.
    server.arg(format!("--tmpdir={}", directory.display()));
    for (name, value) in SETTINGS.map(|(name, value)| (name, value.to_owned())).into_iter().chain(settings) {
        server.arg(format!("--{name}={value}"));
    }
    plain(server)
}

/// Allows a server that root starts to run as root: its files are ours, and so no directory above them must be open to
/// another user.
fn as_root() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("--user=root")
}

/// Returns whether the server says that it listens. A working connection would only show that some process listens on
/// this port.
fn is_ready(log: &str) -> bool {
    log.contains("ready for connections")
}

fn data(directory: &Path) -> PathBuf {
    directory.join("data")
}

/// The settings of every server.
const SETTINGS: [(&str, &str); 16] = [
    ("bind_address", HOST),
    // No socket in the file system.
    ("socket", ""),
    ("skip_name_resolve", "on"),
    // Durable, and with a binary log, as a server with replicas has it.
    ("innodb_flush_log_at_trx_commit", "1"),
    ("log_bin", "binlog"),
    ("server_id", "1"),
    ("sync_binlog", "1"),
    ("binlog_format", "ROW"),
    // A local time that is not UTC, so that a statement that takes local time for UTC fails a test.
    ("default_time_zone", "+05:30"),
    // As in Debian's configuration.
    ("character_set_server", "utf8mb4"),
    // Tests write little, and many run at once, each with a pool or two.
    ("innodb_buffer_pool_size", "64M"),
    ("max_connections", "1000"),
    // Available in every container and on every file system.
    ("innodb_use_native_aio", "off"),
    ("innodb_flush_method", "fsync"),
    // The next start needs no warm cache.
    ("innodb_buffer_pool_dump_at_shutdown", "off"),
    ("innodb_buffer_pool_load_at_startup", "off"),
];

/// Row that tells that the statements of a session have run.
const SESSION_READY: &str = "the session is ready";

/// Longest wait for a session that was ended, in seconds: its rollback takes a moment.
const DROP_WAIT_S: u32 = 10;

const LOG_FILE_SIZE: &str = "--innodb-log-file-size=16M";

/// The user of every server, without a password.
const USER: &str = "root";

/// Version of the template's recipe: templates made by another version are not used.
const TEMPLATE: u32 = 1;
