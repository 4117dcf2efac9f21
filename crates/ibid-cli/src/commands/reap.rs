//! `ibid reap`: removes what is past its time, or counts it.

use std::io::Write;

use ibid::upkeep::{ReapPreview, ReapStats, Retention, reap_preview, reap_store};
use ibid_core::store::{Store, StoreError};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::args::ReapArgs;
use crate::output::{Failure, print_fields, print_json, print_line};
use crate::progress;

/// Counts what would go, removes it to the end, or goes on until stopped.
pub(crate) async fn run(
    store: &dyn Store,
    keep: Retention,
    args: &ReapArgs,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if args.dry_run {
        let outlook = reap_preview(store, keep).await.map_err(|error| failed(&error))?;
        return print_outlook(&outlook, args.json, out);
    }
    let Some(every) = args.every else {
        return print_harvest(&to_the_end(store, keep, args.json).await?, args.json, out);
    };
    loop {
        match to_the_end(store, keep, args.json).await {
            // One line a round, so that a program can read them as they come.
            Ok(harvest) if args.json => print_line(out, harvest_json(&harvest))?,
            Ok(harvest) => print_harvest(&harvest, false, out)?,
            // A store that is away comes back; whoever runs this for ever wants it to go on.
            Err(failure) => eprint!("{failure}"),
        }
        tokio::time::sleep(every).await;
    }
}

/// All that is past its time now.
async fn to_the_end(store: &dyn Store, keep: Retention, is_json: bool) -> Result<ReapStats, Failure> {
    let bar = bar(store, keep, is_json).await.map_err(|error| failed(&error))?;
    let told = |harvest: &ReapStats| bar.set_position(rows(harvest));
    let all = reap_store(store, keep, told).await.map_err(|error| failed(&error))?;
    bar.finish_and_clear();
    Ok(all)
}

/// What is to be done is counted only if somebody looks.
async fn bar(store: &dyn Store, keep: Retention, is_json: bool) -> Result<ProgressBar, StoreError> {
    if is_json || !progress::is_seen() {
        return Ok(ProgressBar::hidden());
    }
    let ReapPreview { records, effects, history } = reap_preview(store, keep).await?;
    Ok(progress::bar(Some(records.strip + records.remove + effects + history), is_json))
}

fn rows(harvest: &ReapStats) -> u64 {
    harvest.stripped + harvest.removed + harvest.effects + harvest.history
}

fn print_harvest(harvest: &ReapStats, as_json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    if as_json {
        return print_json(out, &harvest_json(harvest));
    }
    let ReapStats { settled, stripped, removed, effects, history, pages, held, unfinished: _ } = *harvest;
    let fields = [
        ("never claimed, stored as 408", settled.to_string()),
        ("answers removed, tombstones left", stripped.to_string()),
        ("records removed", removed.to_string()),
        ("effects removed", effects.to_string()),
        ("lines of history removed", history.to_string()),
        ("pages given back", pages.to_string()),
        ("records held by rows that refer to them", held.to_string()),
    ];
    print_fields(out, &fields)
}

fn harvest_json(harvest: &ReapStats) -> Value {
    let ReapStats { settled, stripped, removed, effects, history, pages, held, unfinished: _ } = *harvest;
    json!({
        "settled": settled, "stripped": stripped, "removed": removed, "effects": effects,
        "history": history, "pages": pages, "held": held,
    })
}

fn print_outlook(outlook: &ReapPreview, as_json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let ReapPreview { records, effects, history } = outlook;
    if as_json {
        let value = json!({
            "stripped": records.strip, "removed": records.remove, "effects": effects, "history": history,
        });
        return print_json(out, &value);
    }
    let fields = [
        ("answers that would go, tombstones left", records.strip.to_string()),
        ("records that would go", records.remove.to_string()),
        ("effects that would go", effects.to_string()),
        ("lines of history that would go", history.to_string()),
    ];
    print_fields(out, &fields)
}

fn failed(error: &StoreError) -> Failure {
    Failure::world("cannot reap").because_of(error).hint("what is gone is gone; run it again for the rest")
}
