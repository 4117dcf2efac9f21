//! `ibid reconcile ledger`: compares our books with the provider's.
//!
//! The comparison is in `ibid-ledger`. This command reads the store, prints the differences, and writes dead letters.

mod args;
mod print;
mod watch;

use std::io::{Write, stderr, stdout};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "mysql")]
use ibid::store::mysql::{MysqlOptions, MysqlStore};
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::store::read_only_query::{ReadOnlyQueryError, RowCallback};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid_ledger::compare_inputs::{CompareOptions, EFFECTS_SQL, OurSide, OurSource, add_theirs};
use ibid_ledger::input_file::{InputError, InputErrorKind};
use ibid_ledger::{ComparisonReport, DeadLetterError, write_dead_letters};
use indicatif::{ProgressBar, ProgressFinish};

pub(crate) use self::args::LedgerArgs;
use super::copy::check_open;
use crate::config::{self, StoreUrl};
use crate::open_store::{OpenHint, cannot_open, open_store};
use crate::output::{Failure, Failures, print_line};
use crate::progress;

/// Compares once, or repeatedly with `--every`.
pub(crate) fn main(args: &LedgerArgs) -> Result<(), Failures> {
    let plan = Plan::new(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::world("cannot start the runtime").because(error))?;
    match args.every {
        Some(length) => runtime.block_on(watch::run(plan, length, args.admin_listen)),
        None => runtime.block_on(compare_once(&plan, &mut stdout())),
    }
}

/// The checked arguments, the same for each round.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    args: LedgerArgs,
    options: CompareOptions,
    ours: OurSource,
    /// The store of our side or of the dead letters, if either is in one.
    store: Option<StoreUrl>,
    /// Set when the process receives a stop signal.
    stopped: Arc<AtomicBool>,
}

impl Plan {
    fn new(args: &LedgerArgs) -> Result<Plan, Failures> {
        let ours = parse_ours(&args.ours)?;
        let is_effects = matches!(ours, OurSource::Effects(_));
        let stdins = usize::from(args.theirs == "-") + usize::from(args.ours == "-");
        if stdins > 1 {
            return Err(Failure::usage("both sides can't come from stdin").into());
        }
        if stdins > 0 && args.every.is_some() {
            return Err(Failure::usage("stdin can be read only once, and `--every` reads repeatedly").into());
        }
        if args.since.is_some() && !is_effects {
            return Err(Failure::usage("`--since` is for `--ours effects`")
                .hint("let the statement or the file leave out what is older")
                .into());
        }
        if args.open.is_some() && is_effects {
            return Err(Failure::usage("`--ours effects` knows itself which of its lines are open").into());
        }
        let is_in_store = !matches!(ours, OurSource::File(_)) || args.dead_letters || args.every.is_some();
        let store = is_in_store.then(|| config::store_of(&args.store)).transpose()?;
        if matches!(store, Some(StoreUrl::Memory)) {
            return Err(Failure::usage("a store in memory is gone with its process")
                .hint("name the store that the gateway uses with `--store`")
                .into());
        }
        if store.as_ref().is_some_and(|store| !store.tiers().sql) {
            return Err(Failure::usage("this store has no SQL and no effects to compare with")
                .hint("name a file of our side with `--ours`")
                .into());
        }
        let options = CompareOptions::new(&args.key).with(|options| {
            options.compare = args.compare.clone();
            options.open = args.open.clone();
            options.since = args.since;
        });
        Ok(Plan { args: args.clone(), options, ours, store, stopped: Arc::default() })
    }

    /// Compares both sides. Also returns the number of new dead letters, if they were requested.
    async fn compare(&self) -> Result<(ComparisonReport, Option<u64>), Failures> {
        let report = self.read_and_compare().await?;
        let letters = match &self.store {
            Some(url) if self.args.dead_letters || self.args.every.is_some() => {
                Some(self.write_dead_letters(url, &report).await?)
            }
            _ => None,
        };
        Ok((report, letters))
    }

    async fn read_and_compare(&self) -> Result<ComparisonReport, Failures> {
        let format = self.args.format.map(Into::into);
        let theirs = self.options.open_theirs(&self.args.theirs, format).map_err(Failure::from)?;
        let bar = self.progress_bar("our lines read:");
        let mut on_progress = |lines| self.on_progress(&bar, lines);
        let mut ours = OurSide::new(&self.options, &self.ours, &theirs.columns, &mut on_progress);
        let columns = match &self.ours {
            OurSource::File(name) => {
                ours.read_file(name, format).map_err(failures)?;
                Vec::new()
            }
            OurSource::Effects(_) => self.read_store(EFFECTS_SQL, &mut ours).await?,
            OurSource::Sql(sql) => self.read_store(sql, &mut ours).await?,
        };
        let comparison = ours.finish(&columns).map_err(failures)?;
        drop(bar);
        if comparison.columns().is_empty() {
            let words = "no column is compared besides the key: name some with `--compare`";
            print_line(&mut stderr(), words)?;
        }
        let bar = self.progress_bar("their lines read:");
        let mut on_progress = |lines| self.on_progress(&bar, lines);
        add_theirs(comparison, &self.options, theirs, &mut on_progress).map_err(failures)
    }

    /// Runs a statement on the store's database, adds its rows to our side, and returns its columns.
    async fn read_store(&self, sql: &str, ours: &mut OurSide<'_>) -> Result<Vec<String>, Failures> {
        let mut failed = None;
        let mut on_row = |columns: &[String], cells| match ours.row(columns, cells) {
            Ok(()) => ControlFlow::Continue(()),
            Err(errors) => {
                failed = Some(errors);
                ControlFlow::Break(())
            }
        };
        let columns = match &self.store {
            Some(url) => run_query(url, sql, &mut on_row).await?,
            None => Vec::new(),
        };
        failed.map_or(Ok(columns), |errors| Err(failures(errors)))
    }

    async fn write_dead_letters(&self, url: &StoreUrl, report: &ComparisonReport) -> Result<u64, Failure> {
        let store = open_store(url, false).await?;
        check_open(&*store).await?;
        let written = write_dead_letters(&*store, &self.args.source, &report.differences).await;
        written.map_err(|error| match error {
            DeadLetterError::Source(_) => Failure::usage("`--source` can't be used").because(error),
            _ => Failure::world("cannot write the dead letters").because_of(&error),
        })
    }

    fn progress_bar(&self, message: &'static str) -> ProgressBar {
        let bar = progress::bar(None, self.args.json).with_finish(ProgressFinish::AndClear);
        // `set_message` draws at once. A short file is read before the first tick of the bar's own thread.
        bar.set_message(message);
        bar
    }

    fn on_progress(&self, bar: &ProgressBar, lines: u64) -> ControlFlow<()> {
        if self.stopped.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        bar.set_position(lines);
        ControlFlow::Continue(())
    }
}

async fn compare_once(plan: &Plan, out: &mut dyn Write) -> Result<(), Failures> {
    let (report, letters) = plan.compare().await?;
    if plan.args.json {
        crate::output::print_json(out, &print::json(&report, letters))?;
    } else {
        print::table(&report, letters, out, &mut stderr())?;
    }
    match report.is_equal() {
        true => Ok(()),
        false => Err(Failure::no(format!("the books differ: {}", print::summarize(&report))).into()),
    }
}

fn parse_ours(text: &str) -> Result<OurSource, Failure> {
    match text.split_once(':') {
        Some(("sql", sql)) if sql.trim().is_empty() => Err(Failure::usage("`--ours sql:` has no statement")),
        Some(("sql", sql)) => Ok(OurSource::Sql(sql.to_owned())),
        Some(("effects", "")) => Err(Failure::usage("`--ours effects:` has no kind")),
        Some(("effects", kind)) => Ok(OurSource::Effects(Some(kind.to_owned()))),
        _ if text == "effects" => Ok(OurSource::Effects(None)),
        _ if text.is_empty() => Err(Failure::usage("`--ours` names nothing")),
        _ => Ok(OurSource::File(text.to_owned())),
    }
}

async fn run_query(url: &StoreUrl, sql: &str, on_row: RowCallback<'_>) -> Result<Vec<String>, Failure> {
    match url {
        // `Plan::new` refuses it.
        StoreUrl::Memory => Ok(Vec::new()),
        #[cfg(feature = "dynamodb")]
        StoreUrl::Dynamodb(_) => Ok(Vec::new()),
        #[cfg(feature = "redis")]
        StoreUrl::Redis(_) => Err(Failure::usage("a Redis store has no SQL").hint("give our side as a file")),
        StoreUrl::Sqlite(path) => SqliteStore::read_rows(path, SqliteOptions::default(), sql, on_row)
            .map_err(|error| query_failure(url, error)),
        StoreUrl::Postgres(address) => {
            let read =
                PostgresStore::read_rows(address.reveal(), PostgresOptions::default(), sql, on_row).await;
            read.map_err(|error| query_failure(url, error))
        }
        #[cfg(feature = "mysql")]
        StoreUrl::Mysql(address) => {
            let read = MysqlStore::read_rows(address.reveal(), MysqlOptions::default(), sql, on_row).await;
            read.map_err(|error| query_failure(url, error))
        }
    }
}

fn query_failure(url: &StoreUrl, error: ReadOnlyQueryError<impl OpenHint>) -> Failure {
    match error {
        ReadOnlyQueryError::Open(error) => cannot_open(url, &error),
        ReadOnlyQueryError::Refused(why) => Failure::usage("the statement of `--ours` is refused")
            .because(why)
            .hint("it must be one `select` that writes nothing"),
        ReadOnlyQueryError::Failed(error) => Failure::world("cannot read our side").because_of(&*error),
    }
}

fn failures(errors: Vec<InputError>) -> Failures {
    let all = errors.into_iter().map(Failure::from).collect();
    Failures::some(all).unwrap_or_else(|| Failure::world("cannot compare").into())
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Failure {
        let InputError { kind, message, cause, hint } = error;
        let failure = match kind {
            InputErrorKind::Invalid => Failure::usage(message),
            InputErrorKind::Unreadable => Failure::world(message),
        };
        let failure = cause.into_iter().fold(failure, Failure::because);
        hint.into_iter().fold(failure, Failure::hint)
    }
}
