//! Runs the real binary as a child process, on free ports and in a temporary folder, and observes it from outside.
//!
//! It knows processes, signals and sockets, and nothing of the gateway's internals. Every wait is bounded, and a wait
//! that fails shows the gateway's log.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ibid_testkit::client::{Client, TestRequest, TestResponse};
use ibid_testkit::mariadb::MariaDb;
use ibid_testkit::postgres::Postgres;
use ibid_testkit::redis::Redis;

/// The kind of store that a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Sqlite,
    Postgres,
    #[cfg(feature = "mysql")]
    Mysql,
    #[cfg(feature = "redis")]
    Redis,
    #[cfg(feature = "dynamodb")]
    Dynamodb,
}

/// Makes one test per kind of store from an `async fn(On)`. `and mysql` adds MySQL to a test that does not
/// depend on the kind of its store, and `and redis` one durable Redis server.
macro_rules! on_every_store {
    ($name:ident) => {
        crate::harness::on_every_store!(@ $name, any(), any());
    };
    ($name:ident and mysql) => {
        crate::harness::on_every_store!(@ $name, feature = "mysql", any());
    };
    ($name:ident and mysql and redis) => {
        crate::harness::on_every_store!(@ $name, feature = "mysql", feature = "redis");
    };
    (@ $name:ident, $with_mysql:meta, $with_redis:meta) => {
        mod $name {
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn on_sqlite() {
                super::$name(crate::harness::On::Sqlite).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn on_postgres() {
                super::$name(crate::harness::On::Postgres).await;
            }

            #[cfg($with_mysql)]
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn on_mysql() {
                super::$name(crate::harness::On::Mysql).await;
            }

            #[cfg($with_redis)]
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn on_redis() {
                super::$name(crate::harness::On::Redis).await;
            }
        }
    };
}
pub(crate) use on_every_store;

/// The command line and configuration of a gateway. Starting it twice gives two gateways on one store.
#[derive(Clone)]
pub(crate) struct Setup {
    folder: Arc<tempfile::TempDir>,
    upstream: String,
    tenant: String,
    config: String,
    database: PathBuf,
    /// A PostgreSQL server and the URL of the store on it, instead of the SQLite file.
    server: Option<Arc<Postgres>>,
    /// A MariaDB server with the store, instead of the SQLite file.
    mariadb: Option<Arc<MariaDb>>,
    /// A Redis server with the store, instead of the SQLite file.
    redis: Option<Arc<Mutex<Redis>>>,
    url: Option<String>,
    variables: Vec<(String, String)>,
    flags: Vec<String>,
    /// Limit of open files, if the test sets one.
    files: Option<u32>,
}

impl Setup {
    /// Sets up a gateway before this upstream, for one tenant, with a new SQLite file.
    pub(crate) fn before(upstream: &str) -> Setup {
        let folder = tempfile::tempdir().expect("a folder can be made");
        Setup {
            database: folder.path().join("ibid.db"),
            folder: Arc::new(folder),
            upstream: upstream.to_owned(),
            server: None,
            mariadb: None,
            redis: None,
            url: None,
            tenant: "none".to_owned(),
            config: String::new(),
            variables: Vec::new(),
            flags: Vec::new(),
            files: None,
        }
    }

    /// Uses another kind of store: a new database on the server that all tests share.
    pub(crate) fn on(self, on: On) -> Setup {
        self.on_server((on == On::Postgres).then(Postgres::shared))
            .on_mariadb(on, MariaDb::shared)
            .on_redis(on)
            .on_dynamodb(on)
    }

    /// Uses another kind of store, on a server without the transactions of other tests.
    pub(crate) fn alone_on(self, on: On) -> Setup {
        self.on_server((on == On::Postgres).then(Postgres::start)).on_mariadb(on, MariaDb::start).on_redis(on)
    }

    fn on_server(mut self, server: Option<Postgres>) -> Setup {
        self.url = server.as_ref().map(Postgres::url);
        self.server = server.map(Arc::new);
        self
    }

    #[cfg(feature = "mysql")]
    fn on_mariadb(mut self, on: On, server: fn() -> MariaDb) -> Setup {
        if on == On::Mysql {
            let server = server();
            self.url = Some(server.url());
            self.mariadb = Some(Arc::new(server));
        }
        self
    }

    #[cfg(not(feature = "mysql"))]
    fn on_mariadb(self, _: On, _: fn() -> MariaDb) -> Setup {
        self
    }

    /// Starts a separate server, which takes a moment.
    #[cfg(feature = "redis")]
    fn on_redis(mut self, on: On) -> Setup {
        if on == On::Redis {
            let server = Redis::start();
            self.url = Some(server.url());
            self.redis = Some(Arc::new(Mutex::new(server)));
        }
        self
    }

    #[cfg(not(feature = "redis"))]
    fn on_redis(self, _: On) -> Setup {
        self
    }

    /// Uses a new table, with the least skew and as few shards as a test machine can ask.
    #[cfg(feature = "dynamodb")]
    fn on_dynamodb(self, on: On) -> Setup {
        if on != On::Dynamodb {
            return self;
        }
        let server = ibid_testkit::dynamodb::DynamoDb::shared();
        let (region, endpoint) = (server.region(), server.url());
        self.store_at(&format!("dynamodb://ibid?region={region}&endpoint={endpoint}&skew_max=5s&shards=4"))
            .variable("AWS_ACCESS_KEY_ID", "test")
            .variable("AWS_SECRET_ACCESS_KEY", "test")
    }

    #[cfg(not(feature = "dynamodb"))]
    fn on_dynamodb(self, _: On) -> Setup {
        self
    }

    /// Sends `kill -9` to the Redis server of the store and starts it again. Returns whether there is one.
    pub(crate) fn restart_redis(&self) -> bool {
        let Some(server) = &self.redis else { return false };
        let mut server = server.lock().unwrap();
        server.kill();
        server.start_again();
        true
    }

    /// Uses the store with this URL.
    pub(crate) fn store_at(mut self, url: &str) -> Setup {
        self.url = Some(url.to_owned());
        self
    }

    /// Returns the PostgreSQL server of the store, if it has one.
    pub(crate) fn server(&self) -> Option<&Postgres> {
        self.server.as_deref()
    }

    /// Returns the MariaDB server of the store, if it has one.
    pub(crate) fn mariadb(&self) -> Option<&MariaDb> {
        self.mariadb.as_deref()
    }

    /// Sets the text of `ibid.toml`.
    pub(crate) fn config(mut self, text: &str) -> Setup {
        self.config = text.to_owned();
        self
    }

    /// Sets the value of `--tenant`.
    pub(crate) fn tenant(mut self, how: &str) -> Setup {
        self.tenant = how.to_owned();
        self
    }

    /// Sets the path of the SQLite file.
    pub(crate) fn database_at(mut self, path: &Path) -> Setup {
        self.database = path.to_owned();
        self
    }

    /// Sets an environment variable.
    pub(crate) fn variable(mut self, name: &str, value: &str) -> Setup {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds one argument to the command line; a later `--listen` overrides an earlier one.
    pub(crate) fn flag(mut self, word: &str) -> Setup {
        self.flags.push(word.to_owned());
        self
    }

    /// Limits the number of open files, soft and hard.
    pub(crate) fn files(mut self, limit: u32) -> Setup {
        self.files = Some(limit);
        self
    }

    /// Returns the path of the SQLite file.
    pub(crate) fn database(&self) -> &Path {
        &self.database
    }

    /// Returns the URL of the store: `sqlite:PATH` or that of the server.
    pub(crate) fn store(&self) -> String {
        self.url.clone().unwrap_or_else(|| format!("sqlite:{}", self.database.display()))
    }

    /// Returns the folder, which is deleted with the last clone.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the gateway and waits until it prints its addresses.
    pub(crate) fn start(&self) -> Gateway {
        let mut child = self.command().stdin(Stdio::null()).spawn().expect("the binary starts");
        let log = Log::follow(&mut child);
        let look = || {
            if let Some(status) = child.try_wait().expect("a child can be asked") {
                panic!("the gateway ended with {status} instead: {}", log.text_to_the_end());
            }
            log.addresses()
        };
        let addresses = until("the gateway listens", look, || log.text());
        let resources = (Arc::clone(&self.folder), self.server.clone(), self.mariadb.clone());
        Gateway { child, public: addresses.0, admin: addresses.1, log, _resources: resources }
    }

    /// Starts a gateway that must refuse to start, and waits for its end.
    pub(crate) fn expect_refusal(&self) -> StartRefusal {
        let mut child = self.command().stdin(Stdio::null()).spawn().expect("the binary starts");
        let log = Log::follow(&mut child);
        let status = wait_for_end(&mut child, &log);
        StartRefusal { code: status.code().unwrap_or(-1), output: log.text_to_the_end() }
    }

    /// Runs another command of the binary in the folder, such as `keys list`.
    pub(crate) fn ibid(&self, words: &[&str]) -> Output {
        let variables = self.variables.iter().map(|(name, value)| (name, value));
        bare(self.folder()).args(words).envs(variables).output().expect("the binary starts")
    }

    /// Starts another command of the binary without waiting for it. Its output can be read once it has ended.
    pub(crate) fn spawn(&self, words: &[&str]) -> Child {
        let mut command = bare(self.folder());
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the binary starts")
    }

    /// Returns the text of `ibid.toml`, with a long `begin_timeout` if the test sets none: such a test is not about
    /// time, and must not fail because the machine is slow.
    fn patient_config(&self) -> String {
        if self.config.contains("begin_timeout") {
            return self.config.clone();
        }
        let section = format!("[store]\nbegin_timeout = \"{}s\"\n", BEGIN_PATIENCE.as_secs());
        match self.config.contains("[store]\n") {
            true => self.config.replacen("[store]\n", &section, 1),
            // Append it, so that the lines before it keep their numbers.
            false => format!("{}\n{section}", self.config),
        }
    }

    fn command(&self) -> Command {
        let file = self.folder().join("ibid.toml");
        std::fs::write(&file, self.patient_config()).expect("the file can be written");
        let mut command = match self.files {
            None => bare(self.folder()),
            Some(limit) => bare_with_files(self.folder(), limit),
        };
        command.arg("gateway").arg("--config").arg(file);
        if !self.flags.iter().any(|word| word == "--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        if !self.flags.iter().any(|word| word == "--admin-listen") {
            command.args(["--admin-listen", "127.0.0.1:0"]);
        }
        if !self.upstream.is_empty() {
            command.args(["--upstream", &self.upstream]);
        }
        if !self.tenant.is_empty() {
            command.args(["--tenant", &self.tenant]);
        }
        command.args(["--store", &self.store()]).args(&self.flags);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stderr(Stdio::piped()).stdout(Stdio::piped());
        command
    }
}

/// Returns a command for the binary, without the `IBID_…` variables of the test's own environment.
pub(crate) fn bare(folder: &Path) -> Command {
    without_variables(Command::new(env!("CARGO_BIN_EXE_ibid")), folder)
}

/// Like [`bare`], but with a limit of open files, which a shell sets before it becomes the binary.
fn bare_with_files(folder: &Path, limit: u32) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_ibid")]);
    without_variables(shell, folder)
}

fn without_variables(mut command: Command, folder: &Path) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("IBID_") {
            command.env_remove(name);
        }
    }
    command.current_dir(folder);
    command
}

/// Result of a gateway that refused to start.
#[derive(Debug)]
pub(crate) struct StartRefusal {
    pub(crate) code: i32,
    pub(crate) output: String,
}

impl StartRefusal {
    /// Panics unless the gateway exited with this code and printed `error:`, `cause:`, a blank line and `hint:` in
    /// this order, with these words in them.
    pub(crate) fn assert_error(&self, code: i32, error: &str, cause: &str, hint: &str) {
        let lines: Vec<&str> = self.output.lines().collect();
        let at = lines.iter().position(|line| line.starts_with("error: "));
        let at = at.unwrap_or_else(|| panic!("no `error:` in {self:?}"));
        let rest = &lines[at..];
        assert!(rest.len() >= 4, "four lines, not {self:?}");
        assert!(rest[0].contains(error), "`{error}` in the error of {self:?}");
        assert!(
            rest[1].starts_with("  cause: ") && rest[1].contains(cause),
            "`{cause}` as cause in {self:?}"
        );
        assert_eq!(rest[2], "", "a blank line in {self:?}");
        assert!(rest[3].starts_with("hint: ") && rest[3].contains(hint), "`{hint}` as hint in {self:?}");
        assert_eq!(self.code, code, "{self:?}");
    }
}

/// A running gateway; killed when dropped.
pub(crate) struct Gateway {
    child: Child,
    public: SocketAddr,
    admin: SocketAddr,
    log: Log,
    /// The gateway's folder and server, dropped after the process has ended.
    _resources: (Arc<tempfile::TempDir>, Option<Arc<Postgres>>, Option<Arc<MariaDb>>),
}

impl Gateway {
    /// Returns the address for clients.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.public
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the number of open file descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("/proc shows our child").count()
    }

    /// Returns the number of open sockets. Threads open files when they first need them, but all sockets are open once
    /// the gateway listens.
    pub(crate) fn sockets(&self) -> usize {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("/proc shows our child");
        // A descriptor that is closed meanwhile has no target any more.
        let targets = folder.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    }

    /// Returns the resident memory in kilobytes.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("/proc shows our child");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
        line.trim().trim_end_matches(" kB").parse().expect("a number of kilobytes")
    }

    /// Opens a connection to the gateway.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.public).await
    }

    /// Sends one request on a new connection.
    pub(crate) async fn call(&self, request: &TestRequest) -> TestResponse {
        self.client().await.call(request).await
    }

    /// Retries until the record is settled. In between, the responses may only be refusals that promise nothing.
    pub(crate) async fn retry_until_settled(&self, request: &TestRequest) -> TestResponse {
        until_async("the record is settled", async || {
            let answer = self.call(request).await;
            let open = ["store-unavailable", "request-in-progress", "outcome-unknown"];
            (!open.contains(&problem(&answer).as_str())).then_some(answer)
        })
        .await
    }

    /// Returns the log so far.
    pub(crate) fn log(&self) -> String {
        self.log.text()
    }

    /// Waits until the log contains these words.
    pub(crate) async fn wait_for_log(&self, words: &str) {
        let is_logged = async || self.log().contains(words).then_some(());
        until_async(&format!("the log contains `{words}`"), is_logged).await;
    }

    /// Sends one request to the admin listener.
    pub(crate) async fn admin(&self, request: &TestRequest) -> TestResponse {
        Client::connect(self.admin).await.call(request).await
    }

    /// Gets one page from the admin listener.
    pub(crate) async fn page(&self, path: &str) -> TestResponse {
        Client::connect(self.admin).await.call(&TestRequest::get(path)).await
    }

    /// Returns the sum of a metric over all of its lines that contain `label`.
    pub(crate) async fn metric(&self, name: &str, label: &str) -> f64 {
        let page = self.page("/metrics").await.text();
        let lines = page.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(label)
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Kills the process with SIGKILL and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a killed child ends");
    }

    /// Sends a signal by its name, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status();
        assert!(sent.expect("`kill` can be run").success(), "SIG{name} reaches the gateway");
    }

    /// Waits until the process ends by itself.
    pub(crate) async fn wait_for_exit(&mut self) -> ExitStatus {
        let look = async || self.child.try_wait().expect("a child can be asked");
        let status = until_async("the process ends", look).await;
        self.log.text_to_the_end();
        status
    }

    /// Waits until at most so many sockets are open.
    pub(crate) async fn until_sockets(&self, at_most: usize) {
        let closed = async || (self.sockets() <= at_most).then_some(());
        until_async(&format!("at most {at_most} sockets are open"), closed).await;
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The process may have ended already; then this does nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(SHOWN_MAX)..];
            eprintln!("--- last lines of the log, of {} lines:\n{}\n---", lines.len(), last.join("\n"));
        }
    }
}

/// Output of a gateway on stderr and, if it is piped, on stdout, read as it arrives.
struct Log {
    text: Arc<Mutex<String>>,
    reading: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl Log {
    fn follow(child: &mut Child) -> Log {
        let stderr = child.stderr.take().expect("stderr is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let text = Arc::new(Mutex::new(String::new()));
        let reading = vec![Log::read(stderr, &text), Log::read(stdout, &text)];
        Log { text, reading: Mutex::new(reading) }
    }

    fn read(pipe: impl Read + Send + 'static, text: &Arc<Mutex<String>>) -> std::thread::JoinHandle<()> {
        let shared = Arc::clone(text);
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                let mut text = shared.lock().expect("no one panics with it");
                let _ = writeln!(text, "{}", String::from_utf8_lossy(&line));
            }
        })
    }

    fn text(&self) -> String {
        self.text.lock().expect("no one panics with it").clone()
    }

    /// Returns the whole output. Call it once the process has ended.
    fn text_to_the_end(&self) -> String {
        for reading in self.reading.lock().expect("no one panics with it").drain(..) {
            reading.join().expect("the reader ends with the pipe");
        }
        self.text()
    }

    /// Parses the addresses from `ibid: listening on ADDR, admin on ADDR, …`.
    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        let text = self.text();
        let line = text.lines().find_map(|line| line.strip_prefix("ibid: listening on "))?;
        let mut parts = line.split(", ");
        let public = parts.next()?.parse().ok()?;
        Some((public, parts.next()?.strip_prefix("admin on ")?.parse().ok()?))
    }
}

fn wait_for_end(child: &mut Child, log: &Log) -> ExitStatus {
    let status = until("the process ends", || child.try_wait().expect("a child can be asked"), || log.text());
    log.text_to_the_end();
    status
}

/// Polls until `look` returns a value. There is no signal to wait on across processes, so here and below a test may
/// sleep.
///
/// It blocks the thread. Use it only for what does not depend on the test's own tasks.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>, context: impl FnOnce() -> String) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = look() {
            return value;
        }
        if Instant::now() > deadline {
            panic!("waited in vain until {what}; {}", context());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Like [`until`], but without blocking the test's own upstream and clients.
pub(crate) async fn until_async<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = look().await {
            return value;
        }
        assert!(Instant::now() <= deadline, "waited in vain until {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Returns the number of open connections to this address, counted on the connecting side.
pub(crate) fn connections_to(addr: SocketAddr) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the system's connections");
    let remote = format!(":{:04X}", addr.port());
    // The columns are `number: local remote state …`, and state 1 is an open connection.
    let open = table.lines().filter(|line| {
        let mut words = line.split_whitespace().skip(2);
        words.next().is_some_and(|word| word.ends_with(&remote)) && words.next() == Some("01")
    });
    open.count()
}

/// Returns the code of a problem: the last part of its type.
pub(crate) fn problem(response: &TestResponse) -> String {
    if response.header("content-type").as_deref() != Some("application/problem+json") {
        return String::new();
    }
    let json: serde_json::Value = serde_json::from_slice(&response.body).expect("a problem is JSON");
    let kind = json["type"].as_str().expect("a problem has a type");
    kind.rsplit(['/', ':']).next().unwrap_or_default().to_owned()
}

/// Panics unless the response is this refusal.
#[track_caller]
pub(crate) fn assert_problem(response: &TestResponse, status: u16, code: &str) {
    let actual = (response.status, problem(response));
    assert_eq!(actual, (status, code.to_owned()), "{response:?}");
}

/// Returns whether the response is a replay.
pub(crate) fn is_replay(response: &TestResponse) -> bool {
    response.header("idempotent-replayed").as_deref() == Some("true")
}

/// Longest wait in a test, far above what a loaded two-core machine needs: only a real hang reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Below [`PATIENCE`], so that the gateway refuses a begin that never ends before the client's wait is over.
const BEGIN_PATIENCE: Duration = Duration::from_secs(20);

/// Log lines that a failed test shows: enough to follow the events, too few to bury the failure.
const SHOWN_MAX: usize = 50;

/// Pause between two looks at another process.
const LOOK_EVERY: Duration = Duration::from_millis(10);
