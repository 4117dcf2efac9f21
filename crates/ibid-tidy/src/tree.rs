//! The files of the workspace that are checked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::prose::{Passage, markdown_passages, rust_passages, sql_passages};
use crate::rust_file::RustFile;

/// The text of every checked file, by its path from the root.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    files: Vec<(String, String)>,
}

/// The checked files, parsed.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    /// The Rust files of the tree.
    pub(crate) rust: Vec<RustFile<'a>>,
    /// SQL, Lua, Markdown and TOML files: path and text.
    pub(crate) others: Vec<(&'a str, &'a str)>,
}

impl Sources {
    /// Reads the workspace that this crate belongs to.
    ///
    /// # Errors
    ///
    /// An I/O error, if a folder or file of the workspace can't be read.
    pub(crate) fn of_workspace() -> io::Result<Sources> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut sources = Sources::default();
        sources.read_folder(&root, &root)?;
        sources.files.sort();
        Ok(sources)
    }

    /// Takes files given as path and text.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Sources {
        Sources { files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect() }
    }

    /// Parses the files into a tree.
    pub(crate) fn tree(&self) -> Tree<'_> {
        let (rust, others): (Vec<_>, Vec<_>) = self.files.iter().partition(|(path, _)| path.ends_with(".rs"));
        Tree {
            rust: rust.into_iter().map(|(path, text)| RustFile::parse(path, text)).collect(),
            others: others.into_iter().map(|(path, text)| (path.as_str(), text.as_str())).collect(),
        }
    }

    fn read_folder(&mut self, root: &Path, folder: &Path) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path: PathBuf = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && !SKIPPED_FOLDERS.contains(&name.as_str()) {
                    self.read_folder(root, &path)?;
                }
            } else if CHECKED_ENDINGS.iter().any(|ending| name.ends_with(ending)) {
                let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
                self.files.push((relative, fs::read_to_string(&path)?));
            }
        }
        Ok(())
    }
}

impl<'a> Tree<'a> {
    /// Returns the prose of every file, with the file's path.
    pub(crate) fn passages(&self) -> impl Iterator<Item = (&str, Passage<'a>)> {
        let rust = self
            .rust
            .iter()
            .flat_map(|file| rust_passages(&file.tokens).into_iter().map(|text| (file.path, text)));
        let others = self.others.iter().flat_map(|(path, text)| {
            let passages = match path.rsplit('.').next() {
                Some("sql" | "lua") => sql_passages(text),
                Some("md") => markdown_passages(text),
                _ => Vec::new(),
            };
            passages.into_iter().map(|text| (*path, text))
        });
        rust.chain(others)
    }
}

/// Build output, and files that come from elsewhere.
const SKIPPED_FOLDERS: [&str; 2] = ["target", "data"];

const CHECKED_ENDINGS: [&str; 5] = [".rs", ".sql", ".lua", ".md", "Cargo.toml"];
