//! A small file system for one test, to fill up or to make read-only. Mounting needs root.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted tmpfs; unmounted when dropped.
pub(crate) struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    /// Mounts a tmpfs of this size. It panics if that fails: skipping the test would silently leave its promise
    /// unproven.
    pub(crate) fn mount(size: &str) -> Tmpfs {
        let folder = tempfile::tempdir().expect("a folder can be made");
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"], folder.path());
        Tmpfs(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Changes a mount option such as `ro`.
    pub(crate) fn remount(&self, option: &str) {
        run("mount", &["-o", &format!("remount,{option}")], self.path());
    }

    /// Fills the file system to the last byte.
    pub(crate) fn fill(&self) -> Ballast {
        let path = self.path().join("ballast");
        let mut file = std::fs::File::create(&path).expect("a file can be made");
        for size in [64 * 1024, 1] {
            let block = vec![b'b'; size];
            while file.write_all(&block).is_ok() {}
        }
        Ballast(path)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Unmount lazily: a gateway that is still being killed may have a file open.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// A file that takes all the room; dropping it frees the room.
pub(crate) struct Ballast(PathBuf);

impl Drop for Ballast {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).expect("the ballast can be removed");
    }
}

fn run(program: &str, words: &[&str], folder: &Path) {
    let done = Command::new(program).args(words).arg(folder).output();
    let done = done.unwrap_or_else(|error| panic!("this test needs `{program}`: {error}"));
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "this test needs root to mount a tmpfs; `{program}` said: {stderr}");
}
