//! `ibid keys resolve` and `ibid keys forget` on all records that fit: what would be changed is counted first, and only what
//! was counted, and has not changed since, is touched.

use std::io::Write;

use ibid::operator::{BULK_MAX, BulkAction, Operator, OperatorError, RecordFilter, SeenVersion};
use ibid_core::change::StoredRecord;
use ibid_core::scope::RecordId;
use serde_json::json;

use super::confirm::{act, failed, meant};
use super::keys::{filter, print_records};
use super::resolve::words;
use crate::args::operator::{ActArgs, WhichArgs};
use crate::output::{Failure, print_json, print_line};
use crate::progress;

/// Counts what would be changed and, if it is meant, changes it.
pub(super) async fn run(
    operator: &Operator,
    which: &WhichArgs,
    deed: &BulkAction,
    args: &ActArgs,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    let (who, filter) = (act(args)?, filter(which)?);
    let shown = look(operator, filter, deed).await?;
    let (count, left_alone) = (shown.seen.len(), shown.left_alone);
    if !args.yes {
        match args.json {
            true => print_json(out, &json!({ "count": count, "left_alone": left_alone }))?,
            false => print_records(&shown.first, out)?,
        }
    }
    let more = if shown.more { ", and more fit than are done at once" } else { "" };
    print_line(
        talk,
        format_args!(
            "{count} records would be {}, by {}: {}; {left_alone} that fit can't be{more}",
            words(deed),
            who.who(),
            who.reason()
        ),
    )?;
    if count == 0 {
        return Err(Failure::no("nothing was done: no record that fits can be changed so")
            .hint("`ibid keys list` with the same options shows what fits"));
    }
    if !args.yes {
        return Err(meant());
    }

    let bar = progress::bar(Some(count as u64), args.json);
    let (mut done, mut refused) = (0, Vec::new());
    for some in shown.seen.chunks(BULK_MAX as usize) {
        for (id, result) in operator.apply(some, deed, &who).await {
            bar.inc(1);
            match result {
                Ok(_) => done += 1,
                Err(OperatorError::Store(error)) => {
                    bar.finish_and_clear();
                    print_line(talk, format_args!("{done} records were {} before that", words(deed)))?;
                    return Err(failed(&error));
                }
                Err(why) => refused.push((id, why)),
            }
        }
    }
    bar.finish_and_clear();
    tell(done, &refused, deed, args.json, out)
}

/// What a deed would be done to.
struct Shown {
    seen: Vec<SeenVersion>,
    /// The first of them, for a person to look at.
    first: Vec<StoredRecord>,
    left_alone: u64,
    /// Whether more fit than one command takes.
    more: bool,
}

/// All that `deed` would change, page by page. Writes nothing.
async fn look(operator: &Operator, filter: RecordFilter, deed: &BulkAction) -> Result<Shown, Failure> {
    let mut shown = Shown { seen: Vec::new(), first: Vec::new(), left_alone: 0, more: false };
    let mut after = None;
    loop {
        let page = RecordFilter { after, limit: BULK_MAX, ..filter.clone() };
        let preview = operator.preview(page, deed).await.map_err(|error| failed(&error))?;
        shown.left_alone += preview.left_alone;
        let room = SHOWN_MAX.saturating_sub(shown.first.len());
        let seen =
            |stored: &StoredRecord| SeenVersion { id: stored.record.id, version: stored.record.version };
        shown.seen.extend(preview.records.iter().map(seen));
        shown.first.extend(preview.records.into_iter().take(room));
        after = preview.next;
        shown.more = after.is_some() && shown.seen.len() >= AT_ONCE_MAX;
        if after.is_none() || shown.more {
            return Ok(shown);
        }
    }
}

fn tell(
    done: u64,
    refused: &[(RecordId, OperatorError)],
    deed: &BulkAction,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if as_json {
        let why =
            |(id, why): &(RecordId, OperatorError)| json!({ "id": id.to_string(), "why": why.to_string() });
        let refused: Vec<_> = refused.iter().map(why).collect();
        print_json(out, &json!({ "done": done, "refused": refused }))?;
    } else {
        print_line(out, format_args!("{done} records: {}", words(deed)))?;
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

/// Records that are shown of many: a screenful.
const SHOWN_MAX: usize = 20;

/// Records that one command changes at most: what is remembered of them takes some megabytes, and the work minutes.
const AT_ONCE_MAX: usize = 100_000;
