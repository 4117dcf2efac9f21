//! `ibid reap`: removes expired rows, or counts them.

use std::io::Write;

use ibid::upkeep::{ReapPreview, ReapStats, Retention, reap_preview, reap_store};
use ibid_core::store::{Store, StoreError};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::copy::check_open;
use crate::args::ReapArgs;
use crate::output::{Failure, print_fields, print_json, print_line};
use crate::progress;

/// Counts what would be removed, removes it once, or repeats that until stopped.
pub(crate) async fn run(
    store: &dyn Store,
    keep: Retention,
    args: &ReapArgs,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if args.dry_run {
        let preview = reap_preview(store, keep).await.map_err(|error| reap_failure(&error))?;
        return print_preview(&preview, args.json, out);
    }
    let Some(every) = args.every else {
        return print_stats(&reap_all(store, keep, args.json).await?, args.json, out);
    };
    loop {
        match reap_all(store, keep, args.json).await {
            // One line per round, so that a program can read each as it arrives.
            Ok(stats) if args.json => print_line(out, stats_json(&stats))?,
            Ok(stats) => print_stats(&stats, false, out)?,
            // Continue: the store may answer again in a later round.
            Err(failure) => eprint!("{failure}"),
        }
        tokio::time::sleep(every).await;
    }
}

/// Removes everything that has expired by now.
async fn reap_all(store: &dyn Store, keep: Retention, is_json: bool) -> Result<ReapStats, Failure> {
    check_open(store).await?;
    let bar = bar(store, keep, is_json).await.map_err(|error| reap_failure(&error))?;
    let on_progress = |stats: &ReapStats| bar.set_position(rows(stats));
    let all = reap_store(store, keep, on_progress).await.map_err(|error| reap_failure(&error))?;
    bar.finish_and_clear();
    Ok(all)
}

/// Returns a progress bar. Counts the rows in advance only if stderr is a terminal.
async fn bar(store: &dyn Store, keep: Retention, is_json: bool) -> Result<ProgressBar, StoreError> {
    if is_json || !progress::is_seen() {
        return Ok(ProgressBar::hidden());
    }
    let ReapPreview { records, effects, history, .. } = reap_preview(store, keep).await?;
    Ok(progress::bar(Some(records.strip + records.remove + effects + history), is_json))
}

fn rows(stats: &ReapStats) -> u64 {
    stats.stripped + stats.removed + stats.effects + stats.history
}

fn print_stats(stats: &ReapStats, as_json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    if as_json {
        return print_json(out, &stats_json(stats));
    }
    let ReapStats { settled, stripped, removed, effects, history, policies, pages, held, .. } = *stats;
    let fields = [
        ("never claimed, stored as 408", settled.to_string()),
        ("responses removed, tombstones left", stripped.to_string()),
        ("records removed", removed.to_string()),
        ("effects removed", effects.to_string()),
        ("lines of history removed", history.to_string()),
        ("policies removed", policies.to_string()),
        ("pages given back", pages.to_string()),
        ("records held by rows that refer to them", held.to_string()),
    ];
    print_fields(out, &fields)
}

fn stats_json(stats: &ReapStats) -> Value {
    let ReapStats { settled, stripped, removed, effects, history, policies, pages, held, .. } = *stats;
    json!({
        "settled": settled, "stripped": stripped, "removed": removed, "effects": effects,
        "history": history, "policies": policies, "pages": pages, "held": held,
    })
}

fn print_preview(preview: &ReapPreview, as_json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let ReapPreview { records, effects, history, .. } = preview;
    if as_json {
        let value = json!({
            "stripped": records.strip, "removed": records.remove, "effects": effects, "history": history,
        });
        return print_json(out, &value);
    }
    let fields = [
        ("responses that would go, tombstones left", records.strip.to_string()),
        ("records that would go", records.remove.to_string()),
        ("effects that would go", effects.to_string()),
        ("lines of history that would go", history.to_string()),
    ];
    print_fields(out, &fields)
}

fn reap_failure(error: &StoreError) -> Failure {
    Failure::world("cannot reap")
        .because_of(error)
        .hint("what was removed stays removed; run it again for the rest")
}
