//! Compares the public API of the library crates with `crates/*/public-api.txt`, and writes the files with `IBID_BLESS=1`.
//!
//! It reads the JSON that `scripts/rustdoc` lets rustdoc write: which items are public, under which path, and where
//! they are declared. Signatures are taken from the source, so they read as they were written.

mod listing;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut is_current = true;
    for package in PACKAGES {
        let json = root.join(format!("target/doc/{}.json", package.replace('-', "_")));
        let listing = match listing::read(&root, &json) {
            Ok(listing) => listing,
            Err(error) => {
                eprintln!(
                    "error: cannot list the public API of `{package}`\n  cause: {}: {error}",
                    json.display()
                );
                eprintln!(
                    "\nhint: run `RUSTDOC=$PWD/scripts/rustdoc cargo doc --workspace --no-deps` before"
                );
                return ExitCode::FAILURE;
            }
        };
        let path = root.join(format!("crates/{package}/public-api.txt"));
        if std::env::var_os("IBID_BLESS").is_some()
            && let Err(error) = std::fs::write(&path, &listing)
        {
            eprintln!("error: cannot write `{}`\n  cause: {error}", path.display());
            return ExitCode::FAILURE;
        }
        is_current &= is_same(package, &std::fs::read_to_string(&path).unwrap_or_default(), &listing);
    }
    if is_current { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the lines that were added and removed. Returns whether there are none.
fn is_same(package: &str, stored: &str, listing: &str) -> bool {
    if stored == listing {
        return true;
    }
    eprintln!("error: the public API of `{package}` has changed");
    for line in stored.lines().filter(|line| !listing.lines().any(|other| other == *line)) {
        eprintln!("- {line}");
    }
    for line in listing.lines().filter(|line| !stored.lines().any(|other| other == *line)) {
        eprintln!("+ {line}");
    }
    eprintln!(
        "\nhint: if that is intended, run it again with `IBID_BLESS=1`, and say in CHANGELOG.md what changed"
    );
    false
}

/// The library crates whose API users build on. `scripts/rustdoc` writes the JSON of the same ones.
const PACKAGES: [&str; 5] = ["ibid-core", "ibid", "ibid-console", "ibid-dynamodb", "ibid-ledger"];
