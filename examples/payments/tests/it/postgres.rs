//! A PostgreSQL of the test's own, on a socket in a folder that goes with it.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A running server. It is stopped when dropped.
pub(crate) struct Server {
    folder: TempDir,
    owner: Option<(u32, u32)>,
}

impl Server {
    pub(crate) fn start() -> Server {
        let folder = tempfile::Builder::new().prefix("pay-pg-").tempdir().expect("a folder");
        let server = Server { folder, owner: server_user() };
        if let Some((uid, gid)) = server.owner {
            chown(server.folder.path(), Some(uid), Some(gid)).expect("the folder changes hands");
        }
        let data = server.data();
        server.run("initdb", &["-D", &data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"]);
        let options = format!("-k {} -c listen_addresses=''", server.folder.path().display());
        let log = server.path("log");
        server.run("pg_ctl", &["-D", &data, "-o", &options, "-l", &log, "-w", "start"]);
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@localhost/postgres?host={}", self.folder.path().display())
    }

    fn data(&self) -> String {
        self.path("data")
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn run(&self, program: &str, args: &[&str]) {
        let path = Path::new(&bin_folder()).join(program);
        let mut command = Command::new(path);
        command.args(args).current_dir(self.folder.path()).env("LC_ALL", "C.UTF-8");
        // The server refuses to run as root.
        if let Some((uid, gid)) = self.owner {
            command.uid(uid).gid(gid);
        }
        // What is started in the background keeps what it inherits, and nextest waits for pipes to close.
        let said = std::fs::File::create(self.path("said")).expect("a file");
        command.stdout(said.try_clone().expect("a file")).stderr(said);
        let status = command.status().unwrap_or_else(|error| panic!("`{program}` does not run: {error}"));
        let said = || std::fs::read_to_string(self.path("said")).unwrap_or_default();
        assert!(status.success(), "`{program}` failed: {}", said());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.run("pg_ctl", &["-D", &self.data(), "-m", "immediate", "-w", "stop"]);
    }
}

/// Where the server's programs are.
fn bin_folder() -> String {
    let said = Command::new("pg_config").arg("--bindir").output();
    if let Ok(said) = said
        && said.status.success()
    {
        return String::from_utf8_lossy(&said.stdout).trim().to_owned();
    }
    // Debian puts them there and `pg_config` into another package.
    let mut versions: Vec<_> = std::fs::read_dir("/usr/lib/postgresql")
        .expect("PostgreSQL is installed")
        .filter_map(|entry| entry.ok().map(|entry| entry.path().join("bin")))
        .collect();
    versions.sort();
    versions.pop().expect("PostgreSQL is installed").display().to_string()
}

/// Who runs the server when the tests run as root.
fn server_user() -> Option<(u32, u32)> {
    let uid = std::fs::metadata("/proc/self").ok().map(|me| std::os::unix::fs::MetadataExt::uid(&me));
    if uid != Some(0) {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("a list of users");
    let line = users.lines().find(|line| line.starts_with("postgres:")).expect("a user `postgres`");
    let mut fields = line.split(':').skip(2).map(|id| id.parse().expect("an id"));
    Some((fields.next().expect("a user id"), fields.next().expect("a group id")))
}
