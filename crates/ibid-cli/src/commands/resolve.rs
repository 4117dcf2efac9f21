//! `ibid keys resolve` and `ibid keys forget`: an operator settles unknown records or forgets stored responses, of one
//! record or of all that match (`resolve_bulk.rs`).

use std::io::Write;

use ibid::operator::{BulkAction, Observation, Operator, OperatorError, RecordFilter, answer};
use ibid_core::change::StoredRecord;

use super::confirm::{act, not_confirmed, record_failure};
use super::keys::{parse_prefix, print_records, record_json};
use super::resolve_bulk;
use crate::args::operator::{ActArgs, KeysForgetArgs, KeysResolveArgs, TargetArgs, WhichArgs};
use crate::output::{Failure, print_json, print_line};

/// Settles unknown records, or clears the mark of dead letters whose outcome is known.
pub(crate) async fn resolve(
    operator: &Operator,
    args: &KeysResolveArgs,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    let action =
        if args.seen { BulkAction::Acknowledge } else { BulkAction::Resolve(parse_observation(args)?) };
    run(operator, &args.target, &action, &args.act, out, talk).await
}

/// Forgets the responses of completed or expired records.
pub(crate) async fn forget(
    operator: &Operator,
    args: &KeysForgetArgs,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    run(operator, &args.target, &BulkAction::Forget, &args.act, out, talk).await?;
    if args.act.yes {
        print_line(
            talk,
            "a running gateway may replay the response until its `cache_ttl` is over (60s by default)",
        )?;
    }
    Ok(())
}

async fn run(
    operator: &Operator,
    target: &TargetArgs,
    action: &BulkAction,
    args: &ActArgs,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    let is_all = target.which == WhichArgs::default();
    match &target.id {
        Some(id) if is_all => one(operator, id, action, args, out, talk).await,
        None if !is_all => resolve_bulk::run(operator, &target.which, action, args, out, talk).await,
        Some(_) => Err(Failure::usage("an id names one record, and the other options many")
            .hint("give the id alone, or leave it out")),
        None => Err(Failure::usage("which records?")
            .hint("give the first digits of an id, or say which with options such as `--state unknown`")),
    }
}

async fn one(
    operator: &Operator,
    id: &str,
    action: &BulkAction,
    args: &ActArgs,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    let who = act(args)?;
    let prefix = parse_prefix(id)?;
    let one = match operator.get(&prefix).await {
        Ok(one) => one,
        Err(error) => return Err(record_failure(error, id, out)),
    };
    let record = one.record.id;
    if !args.yes {
        let full = record.to_string().parse().ok();
        let preview =
            operator.preview(RecordFilter::default().with(|filter| filter.prefix = full), action).await;
        let preview = preview.map_err(|error| record_failure(OperatorError::Store(error), id, out))?;
        show(&one, args.json, out)?;
        if preview.records.is_empty() {
            // The message names the record's state. Who settled it last is not looked up for a preview.
            let last = None;
            return Err(record_failure(OperatorError::NotNow { stored: Box::new(one), last }, id, out));
        }
        print_line(talk, format_args!("would be {}, by {}: {}", describe(action), who.who(), who.reason()))?;
        return Err(not_confirmed());
    }
    let done = match action {
        BulkAction::Resolve(observation) => operator.resolve(record, None, observation, &who).await,
        BulkAction::Acknowledge => operator.acknowledge(record, None, &who).await,
        BulkAction::Forget => operator.forget(record, None, &who).await,
    };
    match done {
        Ok(stored) if args.json => print_json(out, &record_json(&stored)),
        Ok(stored) => {
            let state = match action {
                BulkAction::Resolve(_) | BulkAction::Acknowledge => stored.record.state.name(),
                BulkAction::Forget => "absent",
            };
            print_line(out, format_args!("{}: {}, now {state}", record.short(), describe(action)))
        }
        Err(error) => Err(record_failure(error, id, out)),
    }
}

fn show(stored: &StoredRecord, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    match json {
        true => print_json(out, &record_json(stored)),
        false => print_records(std::slice::from_ref(stored), out),
    }
}

pub(super) fn describe(action: &BulkAction) -> String {
    match action {
        BulkAction::Resolve(Observation::Executed(answer)) => {
            format!("resolved as executed ({})", answer.status)
        }
        BulkAction::Resolve(_) => "resolved as not executed".to_owned(),
        BulkAction::Acknowledge => "a dead letter no longer".to_owned(),
        BulkAction::Forget => "forgotten".to_owned(),
    }
}

fn parse_observation(args: &KeysResolveArgs) -> Result<Observation, Failure> {
    let Some(status) = args.status else { return Ok(Observation::NotExecuted) };
    let visible = |text: &str| !text.is_empty() && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if !visible(&args.content_type) {
        return Err(Failure::usage(format!("`--content-type {}` is not a media type", args.content_type)));
    }
    let body = match args.body.as_deref() {
        None => Vec::new(),
        Some(text) => match text.strip_prefix('@') {
            None => text.as_bytes().to_vec(),
            Some(path) => std::fs::read(path)
                .map_err(|error| Failure::usage(format!("cannot read the body `{path}`")).because(error))?,
        },
    };
    if matches!(status, 204 | 205 | 304) && !body.is_empty() {
        return Err(
            Failure::usage(format!("a response with status {status} has no body")).hint("leave `--body` out")
        );
    }
    Ok(Observation::Executed(answer(status, &args.content_type, body)))
}
