//! Directories of database servers that tests start: in memory or on disk, copied from a template that is made once, and
//! removed by the next test if their process was killed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Storage of a server's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// In memory if there is room, otherwise on disk. Flushed data outlives the server's processes there as well.
    Memory,
    Disk,
}

/// The directories of all servers of one kind.
#[derive(Clone, Debug)]
pub(crate) struct ServerFiles {
    /// Name of the parent directory of the servers' directories.
    kind: &'static str,
    /// Directory of the template and of servers on disk.
    home: PathBuf,
}

impl ServerFiles {
    /// Uses a directory next to the build, or the one for temporary files if `has_owner`, so the server runs as another user,
    /// and that user can't enter it.
    pub(crate) fn new(kind: &'static str, has_owner: bool) -> ServerFiles {
        let open = |directory: &Path| fs::metadata(directory).is_ok_and(|found| found.mode() & 0o001 != 0);
        let beside = std::env::current_exe().ok().and_then(|exe| {
            let target =
                exe.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == "target"))?;
            (!has_owner || target.ancestors().all(open)).then(|| target.join("tmp"))
        });
        let home = beside.unwrap_or_else(std::env::temp_dir).join(kind);
        fs::create_dir_all(&home).expect("a directory for servers");
        ServerFiles { kind, home }
    }

    /// Creates a directory for one server.
    pub(crate) fn new_directory(&self, medium: Medium) -> PathBuf {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = self.swept(medium).join(format!("{SERVER}{}-{count}", std::process::id()));
        // A process with our pid may have been killed and left this directory.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a directory for a server");
        directory
    }

    /// Creates the directory of the server that the tests of this run share, unless another test has done so.
    pub(crate) fn shared_directory(&self, runner: i32, run: &str) -> PathBuf {
        let directory = self.swept(Medium::Memory).join(format!("{SERVER}{runner}-{run}"));
        fs::create_dir_all(&directory).expect("a directory for a server");
        directory
    }

    /// Returns the template. The first caller makes it and the others wait for the lock; it is never partial.
    pub(crate) fn template(&self, name: &str, make: impl FnOnce(&Path)) -> PathBuf {
        let template = self.home.join(format!("template-{name}"));
        let lock = fs::File::create(template.with_extension("lock")).expect("a lock file");
        lock.lock().expect("a lock");
        if !template.exists() {
            let making = template.with_extension("making");
            let _ = fs::remove_dir_all(&making);
            fs::create_dir(&making).expect("a directory for the template");
            make(&making);
            fs::rename(&making, &template).expect("a whole template");
        }
        template
    }

    /// Returns the parent of such directories, without those of servers whose process was killed.
    fn swept(&self, medium: Medium) -> PathBuf {
        let memory = if medium == Medium::Memory { self.memory() } else { None };
        let home = memory.unwrap_or_else(|| self.home.clone());
        sweep(&home);
        home
    }

    /// Returns the directory for files in memory, if there is room for a server.
    fn memory(&self) -> Option<PathBuf> {
        let stats = rustix::fs::statvfs(MEMORY).ok()?;
        (stats.f_bavail.saturating_mul(stats.f_frsize) >= MEMORY_MIN)
            .then(|| Path::new(MEMORY).join(self.kind))
    }
}

/// Returns whether this directory is in memory.
pub(crate) fn is_in_memory(directory: &Path) -> bool {
    directory.starts_with(MEMORY)
}

/// Clears the environment, which may have settings for other servers.
pub(crate) fn plain(mut command: Command) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).env("LC_ALL", "C").env("TZ", "UTC");
    command
}

/// Runs a command and panics if it fails.
pub(crate) fn must(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} did not run: {error}"));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {complaint}");
}

/// Runs a command and returns its output, without spaces around it; `None` if it fails.
pub(crate) fn output_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
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

/// A file system in memory, if the system has one.
const MEMORY: &str = "/dev/shm";

/// Plenty for a server, its log and the databases of the tests that run at one time.
const MEMORY_MIN: u64 = 1 << 30;

/// Prefix of every server's directory name.
const SERVER: &str = "server-";
