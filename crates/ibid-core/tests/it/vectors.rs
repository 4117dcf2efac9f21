//! Reads the published test vectors in `tests/data`. A missing file fails the test that needs it.

use std::path::{Path, PathBuf};

/// Returns the content of one vector file, by its path below `tests/data`.
pub(crate) fn read(path: &str) -> Vec<u8> {
    let path = data().join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Like [`read`], parsed as a JSON array that has at least one element.
pub(crate) fn read_cases(path: &str) -> Vec<serde_json::Value> {
    let cases: Vec<_> = serde_json::from_slice(&read(path)).expect("the file is a JSON array");
    assert!(!cases.is_empty(), "{path} has no case");
    cases
}

/// Returns all files of a folder as name and content, sorted by name.
pub(crate) fn read_dir(path: &str) -> Vec<(String, Vec<u8>)> {
    let path = data().join(path);
    let mut files: Vec<_> = std::fs::read_dir(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .map(|entry| entry.expect("a listed folder can be read").path())
        .map(|path| (name(&path), std::fs::read(&path).expect("a listed file can be read")))
        .collect();
    files.sort();
    files
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}
