//! `ibid reconcile ledger`: our books beside the provider's.
//!
//! The comparison is the library's (`ibid::ledger`). Here books are read, findings printed, and dead letters asked for.

mod args;
mod books;
mod every;
mod fields;
mod print;
mod table;

use std::io::{Write, stderr, stdout};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ibid::ledger::{LetterError, Report, write_letters};

pub(crate) use self::args::LedgerArgs;
use self::books::Books;
use crate::config::{self, StoreUrl};
use crate::open::open_store;
use crate::output::{Failure, Failures};

/// Compares, once or again and again.
pub(crate) fn main(args: &LedgerArgs) -> Result<(), Failures> {
    let plan = Plan::new(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::world("cannot start the runtime").because(error))?;
    match args.every {
        Some(length) => runtime.block_on(every::run(plan, length, args.admin_listen)),
        None => runtime.block_on(once(&plan, &mut stdout())),
    }
}

/// What is to be done, at each round alike.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    args: LedgerArgs,
    books: Books,
    /// Where our side or the dead letters are, if either is in a store.
    store: Option<StoreUrl>,
    /// Set when the process is told to stop.
    stopped: Arc<AtomicBool>,
}

impl Plan {
    fn new(args: &LedgerArgs) -> Result<Plan, Failures> {
        let books = Books::parse(&args.ours)?;
        let stdins = usize::from(args.theirs == "-") + usize::from(books.is_stdin());
        if stdins > 1 {
            return Err(Failure::usage("both sides can't come from stdin").into());
        }
        if stdins > 0 && args.every.is_some() {
            return Err(
                Failure::usage("stdin can be read only once, and `--every` reads again and again").into()
            );
        }
        if args.since.is_some() && !books.is_effects() {
            return Err(Failure::usage("`--since` is for `--ours effects`")
                .hint("let the statement or the file leave out what is older")
                .into());
        }
        if args.open.is_some() && books.is_effects() {
            return Err(Failure::usage("`--ours effects` knows itself which of its lines are open").into());
        }
        let in_store = books.is_in_store() || args.dead_letters || args.every.is_some();
        let store = in_store.then(|| config::store_of(&args.place)).transpose()?;
        if matches!(store, Some(StoreUrl::Memory)) {
            return Err(Failure::usage("a store in memory is gone with its process")
                .hint("name the store that the gateway uses with `--store`")
                .into());
        }
        Ok(Plan { args: args.clone(), books, store, stopped: Arc::default() })
    }

    /// Reads both sides and compares them; with dead letters, how many are new.
    async fn compare(&self) -> Result<(Report, Option<u64>), Failures> {
        let report = books::compare(self, &mut stderr()).await?;
        let letters = match &self.store {
            Some(url) if self.args.dead_letters || self.args.every.is_some() => {
                Some(self.letters(url, &report).await?)
            }
            _ => None,
        };
        Ok((report, letters))
    }

    async fn letters(&self, url: &StoreUrl, report: &Report) -> Result<u64, Failure> {
        let store = open_store(url, false).await?;
        write_letters(&*store, &self.args.source, &report.findings).await.map_err(|error| match error {
            LetterError::Source(_) => Failure::usage("`--source` can't be used").because(error),
            _ => Failure::world("cannot write the dead letters").because_of(&error),
        })
    }
}

async fn once(plan: &Plan, out: &mut dyn Write) -> Result<(), Failures> {
    let (report, letters) = plan.compare().await?;
    if plan.args.json {
        crate::output::print_json(out, &print::json(&report, letters))?;
    } else {
        print::table(&report, letters, out, &mut stderr())?;
    }
    match report.is_equal() {
        true => Ok(()),
        false => Err(Failure::no(format!("the books differ: {}", print::words(&report))).into()),
    }
}
