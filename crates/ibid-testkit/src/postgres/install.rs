//! Finds the PostgreSQL installation and its user, and prepares the data directory that every server starts with.
//!
//! `initdb` takes seconds, so it runs once: its result is stored next to the build and copied for each server.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A PostgreSQL installation on this machine.
#[derive(Clone, Debug)]
pub(super) struct Install {
    bin: PathBuf,
    version: String,
    /// User that the server runs as, if not our own: it refuses to run as root.
    owner: Option<Owner>,
    /// Directory of the template and the servers.
    home: PathBuf,
}

/// Storage of a server's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    /// In memory if there is room, otherwise on disk. Flushed data outlives the server's processes there as well.
    Memory,
    Disk,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    uid: u32,
    gid: u32,
}

impl Install {
    /// Finds the installation. Panics with instructions if there is none, because a test that needs PostgreSQL must not
    /// pass without it.
    pub(super) fn find() -> Install {
        let bin = bin_directory().unwrap_or_else(|| {
            panic!("PostgreSQL is not installed: run scripts/setup, or install the package `postgresql`")
        });
        let version = output_of(Command::new(bin.join("postgres")).arg("--version"));
        let version =
            version.expect("postgres tells its version").replace(|c: char| !c.is_alphanumeric(), "-");
        let owner = rustix::process::geteuid().is_root().then(Owner::postgres);
        let home = home(owner.is_some());
        fs::create_dir_all(&home).expect("a directory for servers");
        Install { bin, version, owner, home }
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
        plain(Command::new(self.bin.join(program)))
    }

    fn command(&self, program: &str, flags: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        if let Some(Owner { uid, gid }) = self.owner {
            command.args([&format!("--reuid={uid}"), &format!("--regid={gid}"), "--clear-groups"]);
        }
        command.args(flags).arg("--").arg(self.bin.join(program));
        plain(command)
    }

    /// Runs a command and panics if it fails.
    pub(super) fn must(&self, command: &mut Command) {
        let output = command.output().unwrap_or_else(|error| panic!("{command:?} did not run: {error}"));
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?} failed: {complaint}");
    }

    /// Creates a directory for one server, in memory or on disk.
    pub(super) fn new_directory(&self, medium: Medium) -> PathBuf {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let home = self.swept(medium);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = home.join(format!("{SERVER}{}-{count}", std::process::id()));
        // A process with our pid may have been killed and left this directory.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a directory for a server");
        let data = directory.join("data");
        fs::create_dir(&data).expect("a directory for data");
        self.hand_over(&data);
        directory
    }

    /// Creates the directory of the server that the tests of this run share, unless another test has done so.
    pub(super) fn shared_directory(&self, runner: i32, run: &str) -> PathBuf {
        let directory = self.swept(Medium::Memory).join(format!("{SERVER}{runner}-{run}"));
        fs::create_dir_all(&directory).expect("a directory for a server");
        directory
    }

    /// Returns the parent of such directories, without those of servers whose process was killed.
    fn swept(&self, medium: Medium) -> PathBuf {
        let memory = if medium == Medium::Memory { memory() } else { None };
        let home = memory.unwrap_or_else(|| self.home.clone());
        sweep(&home);
        home
    }

    /// Returns whether this directory is in memory.
    pub(super) fn is_in_memory(&self, directory: &Path) -> bool {
        directory.starts_with(MEMORY)
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

    fn give(&self, place: &Path, mode: u32) {
        if let Some(Owner { uid, gid }) = self.owner {
            chown(place, Some(uid), Some(gid)).expect("root may give away what is its own");
        }
        fs::set_permissions(place, fs::Permissions::from_mode(mode)).expect("what is our own");
    }

    /// Fills the data directory of a new server.
    pub(super) fn fill(&self, directory: &Path) {
        let (template, data) = (self.template(), directory.join("data"));
        let _ = fs::create_dir(&data);
        self.hand_over(&data);
        self.must(Command::new("cp").arg("-a").arg(template.join(".")).arg(data));
    }

    /// Returns the template. The first caller makes it and the others wait for the lock; it is never partial.
    fn template(&self) -> PathBuf {
        let template = self.home.join(format!("template-{TEMPLATE}-{}", self.version));
        let lock = fs::File::create(template.with_extension("lock")).expect("a lock file");
        lock.lock().expect("a lock");
        if !template.exists() {
            let making = template.with_extension("making");
            let _ = fs::remove_dir_all(&making);
            fs::create_dir(&making).expect("a directory for the template");
            self.hand_over(&making);
            let mut initdb = self.as_owner("initdb");
            // Small segments make a small copy. The template need not survive a power cut.
            initdb.args(["--no-sync", "--wal-segsize=1", "--no-locale", "--encoding=UTF8"]);
            initdb.args(["--auth=trust", "--username=postgres", "--pgdata"]).arg(&making);
            self.must(&mut initdb);
            fs::rename(&making, &template).expect("a whole template");
        }
        template
    }
}

/// Removes the directories of servers whose process was killed.
fn sweep(home: &Path) {
    let Ok(entries) = fs::read_dir(home) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(SERVER).and_then(|rest| rest.split_once('-')).map(|(pid, _)| pid);
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the directory for files in memory, if there is room for a server.
fn memory() -> Option<PathBuf> {
    let stats = rustix::fs::statvfs(MEMORY).ok()?;
    (stats.f_bavail.saturating_mul(stats.f_frsize) >= MEMORY_MIN).then(|| Path::new(MEMORY).join(SERVERS))
}

impl Owner {
    fn postgres() -> Owner {
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
        let user = users.lines().map(fields).find(|fields| fields[0] == "postgres");
        let number = |place: usize| user.as_ref()?.get(place)?.parse().ok();
        let (Some(uid), Some(gid)) = (number(2), number(3)) else {
            panic!("PostgreSQL does not run as root, and there is no user `postgres` to run it as");
        };
        Owner { uid, gid }
    }
}

/// Clears the environment, which may have settings for other servers.
fn plain(mut command: Command) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).env("LC_ALL", "C").env("TZ", "UTC");
    command
}

fn bin_directory() -> Option<PathBuf> {
    let has_server = |bin: &PathBuf| bin.join("initdb").exists() && bin.join("postgres").exists();
    let configured = output_of(Command::new("pg_config").arg("--bindir")).map(PathBuf::from);
    if let Some(bin) = configured.filter(has_server) {
        return Some(bin);
    }
    // Debian has one directory per version, which is not in `PATH`.
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let bins = versions.flatten().map(|version| version.path().join("bin")).filter(has_server);
    bins.max_by_key(|bin| {
        let version = bin.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        version.and_then(|version| version.parse::<u32>().ok())
    })
}

fn output_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// Returns a directory next to the build if the server's owner can enter it, else the one for temporary files.
fn home(by_another: bool) -> PathBuf {
    let open = |directory: &Path| fs::metadata(directory).is_ok_and(|found| found.mode() & 0o001 != 0);
    let beside = std::env::current_exe().ok().and_then(|exe| {
        let target = exe.ancestors().find(|place| place.file_name().is_some_and(|name| name == "target"))?;
        (!by_another || target.ancestors().all(open)).then(|| target.join("tmp"))
    });
    beside.unwrap_or_else(std::env::temp_dir).join(SERVERS)
}

/// Parent directory of the servers' directories.
const SERVERS: &str = "ibid-postgres";

/// A file system in memory, if the system has one.
const MEMORY: &str = "/dev/shm";

/// Plenty for a server, its log and the databases of the tests that run at one time.
const MEMORY_MIN: u64 = 1 << 30;

/// Prefix of every server's directory name.
const SERVER: &str = "server-";

/// Version of the template's recipe: templates made by another version are not used.
const TEMPLATE: u32 = 1;
