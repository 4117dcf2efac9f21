//! `ibid keys resolve` and `ibid keys forget` on all records that match: first counts the records, then changes only those
//! that were counted and have not changed since.

use std::io::Write;

use ibid::operator::{BULK_MAX, BulkAction, Operator, OperatorError, RecordFilter, SeenVersion};
use ibid_core::change::StoredRecord;
use ibid_core::scope::RecordId;
use serde_json::json;

use super::confirm::{act, not_confirmed, store_failure};
use super::keys::{filter, print_records};
use super::resolve::describe;
use crate::args::operator::{ActArgs, WhichArgs};
use crate::output::{Failure, print_json, print_line};
use crate::progress;

/// Counts the records that would be changed and, with `--yes`, changes them.
pub(super) async fn run(
    operator: &Operator,
    which: &WhichArgs,
    action: &BulkAction,
    args: &ActArgs,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    let (who, filter) = (act(args)?, filter(which)?);
    let selection = select_records(operator, filter, action).await?;
    let (count, left_alone) = (selection.seen.len(), selection.left_alone);
    if !args.yes {
        match args.json {
            true => print_json(out, &json!({ "count": count, "left_alone": left_alone }))?,
            false => print_records(&selection.first, out)?,
        }
    }
    let more = if selection.more { ", and more fit than are done at once" } else { "" };
    print_line(
        talk,
        format_args!(
            "{count} records would be {}, by {}: {}; {left_alone} that fit can't be{more}",
            describe(action),
            who.who(),
            who.reason()
        ),
    )?;
    if count == 0 {
        return Err(Failure::no("nothing was done: no record that fits can be changed so")
            .hint("`ibid keys list` with the same options shows what fits"));
    }
    if !args.yes {
        return Err(not_confirmed());
    }

    let bar = progress::bar(Some(count as u64), args.json);
    let (mut done, mut refused) = (0, Vec::new());
    for some in selection.seen.chunks(BULK_MAX as usize) {
        for (id, result) in operator.apply(some, action, &who).await {
            bar.inc(1);
            match result {
                Ok(_) => done += 1,
                Err(OperatorError::Store(error)) => {
                    bar.finish_and_clear();
                    print_line(talk, format_args!("{done} records were {} before that", describe(action)))?;
                    return Err(store_failure(&error));
                }
                Err(why) => refused.push((id, why)),
            }
        }
    }
    bar.finish_and_clear();
    print_result(done, &refused, action, args.json, out)
}

/// The records that an action would change.
struct Selection {
    seen: Vec<SeenVersion>,
    /// The first of them, to show to the operator.
    first: Vec<StoredRecord>,
    /// Number of records that match and can't be changed.
    left_alone: u64,
    /// Set if more records match than one command changes.
    more: bool,
}

/// Reads all records that `action` would change, page by page. Writes nothing.
async fn select_records(
    operator: &Operator,
    filter: RecordFilter,
    action: &BulkAction,
) -> Result<Selection, Failure> {
    let mut selection = Selection { seen: Vec::new(), first: Vec::new(), left_alone: 0, more: false };
    let mut after = None;
    loop {
        let page = filter.clone().with(|filter| {
            filter.after = after;
            filter.limit = BULK_MAX;
        });
        let preview = operator.preview(page, action).await.map_err(|error| store_failure(&error))?;
        selection.left_alone += preview.left_alone;
        let room = SHOWN_MAX.saturating_sub(selection.first.len());
        let version_of =
            |stored: &StoredRecord| SeenVersion { id: stored.record.id, version: stored.record.version };
        selection.seen.extend(preview.records.iter().map(version_of));
        selection.first.extend(preview.records.into_iter().take(room));
        after = preview.next;
        selection.more = after.is_some() && selection.seen.len() >= AT_ONCE_MAX;
        if after.is_none() || selection.more {
            return Ok(selection);
        }
    }
}

fn print_result(
    done: u64,
    refused: &[(RecordId, OperatorError)],
    action: &BulkAction,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if as_json {
        let why =
            |(id, why): &(RecordId, OperatorError)| json!({ "id": id.to_string(), "why": why.to_string() });
        let refused: Vec<_> = refused.iter().map(why).collect();
        print_json(out, &json!({ "done": done, "refused": refused }))?;
    } else {
        print_line(out, format_args!("{done} records: {}", describe(action)))?;
        for (id, why) in refused.iter().take(SHOWN_MAX) {
            print_line(out, format_args!("{}: left alone, {why}", id.short()))?;
        }
    }
    match refused.len() {
        0 => Ok(()),
        left => Err(Failure::no(format!("{left} records were left alone: they changed meanwhile"))
            .hint("say it again without `--yes` to see what still fits")),
    }
}

/// Most records that are printed: a screenful.
const SHOWN_MAX: usize = 20;

/// Most records that one command changes: their ids and versions take some megabytes of memory, and the work takes minutes.
const AT_ONCE_MAX: usize = 100_000;
