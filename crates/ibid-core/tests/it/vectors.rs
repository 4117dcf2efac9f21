//! Finds published test vectors: a small set travels with the crate, larger ones are used where they lie.

use std::path::{Path, PathBuf};

/// A vector file by its path below the vectors folder, from the larger collection if it is there, else from
/// the crate's own data. `None`, with a word on stderr, when neither has it.
pub(crate) fn read(path: &str) -> Option<Vec<u8>> {
    let found = [collection(), own_data()].iter().find_map(|root| std::fs::read(root.join(path)).ok());
    if found.is_none() {
        eprintln!("vectors `{path}` are not on this machine: not run (set IBID_VECTORS to their folder)");
    }
    found
}

/// As [`read`], as text of JSON.
pub(crate) fn read_json(path: &str) -> Option<serde_json::Value> {
    read(path).map(|bytes| serde_json::from_slice(&bytes).expect("vector files are JSON"))
}

/// All files in a folder of vectors, as name and content, sorted by name; empty, with a word on stderr, when
/// the folder is not on this machine.
pub(crate) fn read_dir(path: &str) -> Vec<(String, Vec<u8>)> {
    let listed = [collection(), own_data()].iter().find_map(|root| std::fs::read_dir(root.join(path)).ok());
    let Some(listed) = listed else {
        eprintln!("vectors `{path}/` are not on this machine: not run (set IBID_VECTORS to their folder)");
        return Vec::new();
    };
    let mut files: Vec<_> = listed
        .map(|entry| entry.expect("a listed folder can be read").path())
        .map(|path| (name(&path), std::fs::read(&path).expect("a listed file can be read")))
        .collect();
    files.sort();
    files
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The larger collection, kept beside the workspace.
fn collection() -> PathBuf {
    match std::env::var_os("IBID_VECTORS") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors"),
    }
}

fn own_data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}
