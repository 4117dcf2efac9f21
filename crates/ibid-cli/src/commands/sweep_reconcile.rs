//! `ibid sweep` and `ibid reconcile`: run one chore on the store, once or repeatedly, without a gateway.
//!
//! Any number of them may run at the same time as gateways: each writes by compare-and-set on the version that it read.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use ibid::upkeep::{ReconcileStats, reconcile_with_progress, sweep_with_progress};
use ibid::{Ibid, Settings};
use ibid_core::store::{Store, StoreError};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::copy::check_open;
use crate::config::StoreUrl;
use crate::config::units::show_duration;
use crate::gateway::forward::Forwarder;
use crate::gateway::reconcile::UpstreamLookup;
use crate::output::{Failure, print_json, print_line};
use crate::progress;

/// The repetition and the output format of a chore.
pub(crate) struct Rounds {
    /// Time between two rounds; `None` runs the chore once.
    pub(crate) every: Option<Duration>,
    /// Prints one JSON object per round instead of a sentence.
    pub(crate) json: bool,
}

/// Settles lapsed leases, each by the `on_lapse` rule that its record was begun with.
pub(crate) async fn sweep(
    url: &StoreUrl,
    store: Arc<dyn Store>,
    rounds: &Rounds,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let ibid = Ibid::for_upkeep(store.clone(), Settings::default());
    rounds.announce(format_args!("settles lapsed leases in {url}"));
    rounds
        .run(url, &*store, out, async || {
            let bar = rounds.bar("lapsed leases settled:");
            let mut swept = sweep_with_progress(&ibid, |swept| bar.set_position(swept)).await?;
            if rounds.wait_if_held_back(swept.held_back).await {
                let before = swept.settled;
                let rest = sweep_with_progress(&ibid, |swept| bar.set_position(before + swept)).await?;
                swept.settled += rest.settled;
            }
            bar.finish_and_clear();
            let swept = swept.settled;
            Ok((json!({ "swept": swept }), format!("{swept} lapsed leases settled")))
        })
        .await
}

/// Looks up unknown records at the upstream, each with the lookup request in its policy.
pub(crate) async fn reconcile(
    url: &StoreUrl,
    store: Arc<dyn Store>,
    upstream: Forwarder,
    rounds: &Rounds,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let ibid = Ibid::for_upkeep(store.clone(), Settings::default());
    ibid.reconcile_with(Arc::new(UpstreamLookup(upstream)));
    rounds.announce(format_args!("asks about unknown records in {url}"));
    rounds
        .run(url, &*store, out, async || {
            let bar = rounds.bar("questions asked:");
            let mut stats = reconcile_with_progress(&ibid, |stats| bar.set_position(stats.asked)).await?;
            if rounds.wait_if_held_back(stats.held_back).await {
                let before = stats.asked;
                let progress = |stats: &ReconcileStats| bar.set_position(before + stats.asked);
                let rest = reconcile_with_progress(&ibid, progress).await?;
                stats.asked += rest.asked;
                stats.settled += rest.settled;
                stats.dead_letters += rest.dead_letters;
            }
            bar.finish_and_clear();
            let (asked, settled, dead) = (stats.asked, stats.settled, stats.dead_letters);
            let json = json!({ "asked": asked, "settled": settled, "dead_letters": dead });
            Ok((
                json,
                format!("{asked} questions asked, {settled} outcomes known now, {dead} left to an operator"),
            ))
        })
        .await
}

impl Rounds {
    fn bar(&self, what: &'static str) -> ProgressBar {
        let bar = progress::bar(None, self.json);
        bar.set_message(what);
        bar
    }

    /// Prints what the command does to stderr, because it may take a while.
    fn announce(&self, what: std::fmt::Arguments<'_>) {
        let often =
            self.every.map_or_else(|| "once".to_owned(), |every| format!("every {}", show_duration(every)));
        eprintln!("ibid: {what}, {often}");
    }

    /// Waits until the records that a single round held back may be handled, and returns `true` if there were any. With an
    /// interval a later round handles them.
    async fn wait_if_held_back(&self, held_back: Option<Duration>) -> bool {
        let (Some(wait), None) = (held_back, self.every) else { return false };
        let shown = show_duration(wait);
        eprintln!(
            "ibid: some wait for {shown}, because a process that has just started can't tell if their owner is alive"
        );
        tokio::time::sleep(wait).await;
        true
    }

    async fn run(
        &self,
        url: &StoreUrl,
        store: &dyn Store,
        out: &mut dyn Write,
        chore: impl AsyncFn() -> Result<(Value, String), StoreError>,
    ) -> Result<(), Failure> {
        loop {
            check_open(store).await?;
            let result = chore().await;
            let failed = |error| {
                Failure::world(format!("cannot use the store at `{url}`"))
                    .because_of(&error)
                    .hint("run `ibid doctor` to see what is not as it should be")
            };
            match (result, self.every) {
                (Ok((value, _)), None) if self.json => return print_json(out, &value),
                (Ok((_, sentence)), None) => return print_line(out, sentence),
                // One line per round, so that a program can read each as it arrives.
                (Ok((value, _)), Some(_)) if self.json => print_line(out, value)?,
                (Ok((_, sentence)), Some(_)) => print_line(out, sentence)?,
                (Err(error), None) => return Err(failed(error)),
                // Continue: the store may answer again in a later round.
                (Err(error), Some(_)) => eprint!("{}", failed(error)),
            }
            tokio::time::sleep(self.every.unwrap_or_default()).await;
        }
    }
}
