//! Real Redis servers for tests: a single one, a primary with a replica, a cluster.
//!
//! Each server has its own directory and port, flushes every write unless its settings say otherwise, and ends with the test.
//! All calls block; a start takes some tens of milliseconds. It must not know what ibid stores in it.

use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use rustix::process::Signal;

use crate::program::free_port;
use crate::server_process::{self, HOST, LOOK_EVERY, PORT_TRIES, READY_WITHIN, ServerProcess};

/// A server that runs until it is dropped, and never longer than the process that started it.
#[derive(Debug)]
pub struct Redis {
    directory: tempfile::TempDir,
    port: u16,
    settings: Vec<(String, String)>,
    /// `None` while it is stopped.
    running: Option<ServerProcess>,
}

impl Redis {
    /// Starts a server that flushes every write.
    pub fn start() -> Redis {
        Redis::start_with(&[])
    }

    /// Like [`Self::start`], with other settings.
    ///
    /// # Panics
    ///
    /// Panics if `redis-server` is not installed or does not start.
    pub fn start_with(settings: &[(&str, &str)]) -> Redis {
        let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let directory = tempfile::tempdir().expect("a folder can be made");
        let mut server = Redis { directory, port: 0, settings, running: None };
        // Another process may take a port between our check and the server's bind.
        for _ in 0..PORT_TRIES {
            server.port = free_port();
            if server.try_start() {
                return server;
            }
        }
        panic!("Redis did not start:\n{}", server.log());
    }

    /// Starts a replica of this server, and returns once it has copied everything.
    pub fn replica(&self) -> Redis {
        let replica = Redis::start_with(&[("replicaof", &format!("{HOST} {}", self.port))]);
        wait_for("the replica follows", || replica.info("master_link_status") == "up");
        replica
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("redis://{HOST}:{}", self.port)
    }

    /// Returns the port that it listens on, on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs a command in `redis-cli` and returns its output. An error of the server is part of the output.
    pub fn cli(&self, words: &[&str]) -> String {
        let mut cli = Command::new("redis-cli");
        cli.args(["-h", HOST, "-p", &self.port.to_string()]).args(words).stdin(Stdio::null());
        let output = cli.output().expect("`redis-cli` runs");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Returns a line of `INFO`.
    pub fn info(&self, name: &str) -> String {
        let info = self.cli(&["INFO", "everything"]);
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    }

    /// Changes a setting at run time.
    pub fn set(&self, name: &str, value: &str) {
        assert_eq!(self.cli(&["CONFIG", "SET", name, value]), "OK", "`{name}` becomes `{value}`");
    }

    /// Changes a setting for the next start.
    pub fn change_setting(&mut self, name: &str, value: &str) {
        self.settings.retain(|(set, _)| set != name);
        self.settings.push((name.to_owned(), value.to_owned()));
    }

    /// Sends `kill -9` to the server.
    pub fn kill(&mut self) {
        if let Some(process) = self.running.take() {
            process.end(Signal::KILL);
        }
    }

    /// Stops the server's process without ending it: connections stay, and nothing answers.
    pub fn pause(&self) {
        self.running.as_ref().expect("the server runs").stop();
    }

    /// Lets a stopped process go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        self.running.as_ref().expect("the server runs").signal(signal);
    }

    /// Starts a killed server again, on its port and directory.
    pub fn start_again(&mut self) {
        assert!(self.running.is_none(), "the server runs already");
        let until = Instant::now() + READY_WITHIN;
        // A connection of another process may hold the port for a moment.
        while !self.try_start() {
            assert!(Instant::now() < until, "Redis did not start again:\n{}", self.log());
        }
    }

    /// Like [`Self::start_again`], but returns as soon as the server takes connections: it may still load its data.
    pub fn start_again_loading(&mut self) {
        let is_open = |_| TcpStream::connect((HOST, self.port)).is_ok();
        self.running = ServerProcess::start(self.command(), self.directory.path(), is_open);
        assert!(self.running.is_some(), "Redis starts again:\n{}", self.log());
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        server_process::log(self.directory.path())
    }

    /// Starts it and waits until it answers; `false` if it ended instead.
    fn try_start(&mut self) -> bool {
        // Another server may have the port, and would answer, too.
        let is_ready = |pid: i32| self.cli(&["PING"]) == "PONG" && self.info("process_id") == pid.to_string();
        self.running = ServerProcess::start(self.command(), self.directory.path(), is_ready);
        self.running.is_some()
    }

    fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "redis-server", "--port", &self.port.to_string()]);
        command.args(["--bind", HOST, "--logfile", "log", "--dir"]).arg(self.directory.path());
        for (name, value) in DEFAULTS {
            if !self.settings.iter().any(|(set, _)| set == name) {
                command.args([&format!("--{name}"), value]);
            }
        }
        for (name, value) in &self.settings {
            command.arg(format!("--{name}")).args(value.split(' '));
        }
        command
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A cluster, of three primaries without replicas unless it was started otherwise.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts the servers and joins them; each owns a third of the slots.
    pub fn start() -> RedisCluster {
        RedisCluster::start_with(3, 0, &[])
    }

    /// Like [`Self::start`], with this many primaries, replicas of each, and settings. The primaries come first.
    pub fn start_with(primaries: usize, replicas: usize, settings: &[(&str, &str)]) -> RedisCluster {
        let mut all = vec![("cluster-enabled", "yes"), ("cluster-config-file", "nodes.conf")];
        all.extend(settings);
        let servers = primaries * (1 + replicas);
        let cluster = RedisCluster { nodes: (0..servers).map(|_| Redis::start_with(&all)).collect() };
        if servers == 1 {
            // `redis-cli` makes no cluster of one.
            assert_eq!(cluster.nodes[0].cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
        }
        let addresses: Vec<String> =
            cluster.nodes.iter().map(|node| format!("{HOST}:{}", node.port)).collect();
        let (mut create, replicas) = (vec!["--cluster", "create"], replicas.to_string());
        create.extend(addresses.iter().map(String::as_str));
        create.extend(["--cluster-replicas", &replicas, "--cluster-yes"]);
        let output = if servers > 1 { cluster.nodes[0].cli(&create) } else { String::new() };
        for node in &cluster.nodes {
            wait_for(&output, || {
                node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                    && (node.info("role") == "master" || node.info("master_link_status") == "up")
            });
        }
        cluster
    }

    /// Returns the replica of a primary.
    pub fn replica_of(&self, primary: usize) -> &Redis {
        let port = self.nodes[primary].port.to_string();
        self.nodes.iter().find(|node| node.info("master_port") == port).expect("it has a replica")
    }

    /// Returns the URL of the cluster, with all of its servers.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("{HOST}:{}", node.port)).collect();
        format!("redis://{}", hosts.join(","))
    }

    /// Returns one of the servers.
    pub fn node(&mut self, number: usize) -> &mut Redis {
        &mut self.nodes[number]
    }

    /// Moves slots from one server to another, key by key, while clients may use them.
    pub fn reshard(&self, from: usize, to: usize, slots: u32) {
        let id = |node: usize| self.nodes[node].cli(&["CLUSTER", "MYID"]);
        let (address, slots) = (format!("{HOST}:{}", self.nodes[from].port), slots.to_string());
        let (from, to) = (id(from), id(to));
        let output = self.nodes[0].cli(&[
            "--cluster",
            "reshard",
            &address,
            "--cluster-from",
            &from,
            "--cluster-to",
            &to,
            "--cluster-slots",
            &slots,
            "--cluster-yes",
        ]);
        assert!(!output.contains("[ERR]") && !output.contains("ERR "), "{output}");
    }

    /// Returns the slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        self.nodes[0].cli(&["CLUSTER", "KEYSLOT", key]).parse().expect("a number")
    }
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + READY_WITHIN;
    while !is_so() {
        assert!(Instant::now() < until, "not in time: {what}");
        thread::sleep(LOOK_EVERY);
    }
}

/// Settings of every server, unless the test sets others. A replica need not wait for others that might follow, too.
const DEFAULTS: [(&str, &str); 4] =
    [("appendonly", "yes"), ("appendfsync", "always"), ("save", ""), ("repl-diskless-sync-delay", "0")];
