//! `ibid effects list`, `retry` and `discard`: calls to other services as an operator sees them.

use std::io::Write;

use ibid::operator::{EffectAction, Operator};
use ibid::outbox::{EffectFilter, EffectState, StoredEffect};
use ibid_console::rfc3339;
use serde_json::{Value, json};

use super::confirm::{act, effect_failure, not_confirmed, record_failure};
use super::keys::{no_state, parse_prefix};
use crate::args::operator::{EffectArgs, EffectsListArgs};
use crate::output::{Failure, print_json, print_line, print_table};

/// Lists the effects that match to `out`, and prints how to continue the list to `talk`.
pub(crate) async fn list(
    operator: &Operator,
    args: &EffectsListArgs,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    let state = match &args.state {
        None => None,
        Some(word) => Some(
            EffectState::from_name(word)
                .ok_or_else(|| no_state(word, "no state of an effect", &EffectState::NAMES))?,
        ),
    };
    let record = match &args.record {
        None => None,
        Some(id) => match operator.get(&parse_prefix(id)?).await {
            Ok(stored) => Some(stored.record.id),
            Err(error) => return Err(record_failure(error, id, out)),
        },
    };
    let filter = EffectFilter::default().with(|filter| {
        (filter.state, filter.record, filter.dead_letter) = (state, record, args.dead_letters);
        (filter.after, filter.limit) = (args.after, args.limit);
    });
    let (effects, next) = operator.effects(filter).await.map_err(effect_failure)?;
    if args.json {
        print_json(out, &effects.iter().map(effect_json).collect())?;
    } else if !effects.is_empty() {
        print_effects(&effects, out)?;
    }
    match next {
        Some(next) => print_line(talk, format_args!("there are more: `--after {next}`")),
        None if effects.is_empty() => print_line(talk, "no effect fits"),
        None => Ok(()),
    }
}

/// Queues an effect, so that the worker makes its call.
pub(crate) async fn retry(
    operator: &Operator,
    args: &EffectArgs,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    let who = act(&args.act)?;
    if !args.act.yes {
        let effect = preview(operator, args, EffectAction::Retry, out).await?;
        print_line(talk, "would be retried: the worker makes the call under the same downstream key")?;
        if effect.may_be_second() {
            print_line(
                talk,
                "careful: the provider may have forgotten that key and execute the call a second time",
            )?;
        }
        return Err(not_confirmed());
    }
    let effect = operator.retry(args.seq, &who).await.map_err(effect_failure)?;
    print_done(&effect, args, "retried", out)
}

/// Discards an effect, so that its call is never made.
pub(crate) async fn discard(
    operator: &Operator,
    args: &EffectArgs,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    let who = act(&args.act)?;
    if !args.act.yes {
        let effect = preview(operator, args, EffectAction::Discard, out).await?;
        print_line(talk, "would be discarded: the call is never made")?;
        if effect.owes {
            print_line(talk, "its record's response waits for it, and would be unknown")?;
        }
        return Err(not_confirmed());
    }
    let effect = operator.discard(args.seq, &who).await.map_err(effect_failure)?;
    print_done(&effect, args, "discarded", out)
}

async fn preview(
    operator: &Operator,
    args: &EffectArgs,
    action: EffectAction,
    out: &mut dyn Write,
) -> Result<StoredEffect, Failure> {
    let effect = operator.effect(args.seq).await.map_err(effect_failure)?;
    match args.act.json {
        true => print_json(out, &effect_json(&effect))?,
        false => print_effects(std::slice::from_ref(&effect), out)?,
    }
    action.check(&effect).map_err(effect_failure)?;
    Ok(effect)
}

fn print_done(
    effect: &StoredEffect,
    args: &EffectArgs,
    what: &str,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    match args.act.json {
        true => print_json(out, &effect_json(effect)),
        false => print_line(out, format_args!("{}: {what}, now {}", effect.seq, effect.state.name())),
    }
}

fn print_effects(effects: &[StoredEffect], out: &mut dyn Write) -> Result<(), Failure> {
    let rows = effects.iter().map(|effect| {
        vec![
            effect.seq.to_string(),
            effect.state.name().to_owned(),
            effect.kind.clone(),
            effect.name.clone(),
            effect.tries.to_string(),
            effect.tenant.clone(),
            effect.record.short(),
            effect.due_at.map_or("-".to_owned(), rfc3339),
            rfc3339(effect.created_at),
            effect.last_error.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    });
    print_table(out, &COLUMNS, rows.collect())
}

fn effect_json(effect: &StoredEffect) -> Value {
    json!({
        "seq": effect.seq,
        "record": effect.record.to_string(),
        "tenant": effect.tenant,
        "name": effect.name,
        "kind": effect.kind,
        "state": effect.state.name(),
        "tries": effect.tries,
        "due_at": effect.due_at.map(rfc3339),
        "created_at": rfc3339(effect.created_at),
        "called_at": effect.called_at.map(rfc3339),
        "done_at": effect.done_at.map(rfc3339),
        "aggregate": effect.aggregate,
        "downstream_key": effect.downstream_key,
        "owes": effect.owes,
        "may_be_second": effect.may_be_second(),
        "provider_id": effect.provider_id,
        "last_error": effect.last_error,
    })
}

const COLUMNS: [&str; 10] =
    ["effect", "state", "kind", "name", "tries", "tenant", "record", "due", "created", "last error"];
