//! `scripts/chains`: the gateway in front of real proxies and frameworks, one failure at a time. It prints the response of
//! each, how often the upstream was reached, and the state of the key, and compares that with the tables of a page.
//!
//! ```text
//! ibid-chains IBID PAGE [--bless] [--only NAME]
//! ```

mod chain;
mod frameworks;
mod hops;
mod page;
mod presets;

use std::path::PathBuf;
use std::process::ExitCode;

use page::Table;

fn main() -> ExitCode {
    let Some(asked) = Selection::read(std::env::args().skip(1)) else {
        eprintln!("usage: ibid-chains IBID PAGE [--bless] [--only NAME]");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(run(&asked))
}

/// The arguments of the command line.
struct Selection {
    /// Path of the gateway's binary.
    ibid: PathBuf,
    /// The page with the tables.
    page: PathBuf,
    /// Writes the tables instead of comparing them.
    bless: bool,
    /// Only rows of this hop or framework; then nothing is compared or written.
    only: Option<String>,
}

impl Selection {
    fn read(mut words: impl Iterator<Item = String>) -> Option<Selection> {
        let ibid = PathBuf::from(words.next()?).canonicalize().ok()?;
        let mut asked = Selection { ibid, page: PathBuf::from(words.next()?), bless: false, only: None };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--bless" => asked.bless = true,
                "--only" => asked.only = Some(words.next()?),
                _ => return None,
            }
        }
        Some(asked)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == name)
    }
}

async fn run(asked: &Selection) -> ExitCode {
    let mut problems = Vec::new();
    let tables: [Table; 3] = [
        hops::run(asked, &mut problems).await,
        presets::run(asked, &mut problems).await,
        frameworks::run(asked, &mut problems).await,
    ];
    if asked.only.is_none() {
        problems.extend(page::keep(&asked.page, &tables, asked.bless));
    }
    for problem in &problems {
        eprintln!("error: {problem}");
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
