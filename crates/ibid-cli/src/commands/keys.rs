//! `ibid keys list` and `ibid keys show`: records as an operator sees them.
//!
//! Keys are shown here, unlike in logs: an operator who may open the store can read them anyway.

use std::io::Write;

use ibid_console::rfc3339;
use ibid_core::change::{HistoryLine, StoredRecord};
use ibid_core::record::{Record, State};
use ibid_core::response::SavedResponse;
use ibid_core::scope::{IdPrefix, RecordId};
use ibid_core::store::{
    BrowseStore, Cursor, CursorError, Page, PathPattern, RecordFilter, Store, StoreError,
};
use ibid_core::time::Timestamp;
use serde_json::{Value, json};

use super::config_check::policy_json;
use crate::args::operator::WhichArgs;
use crate::args::{KeysListArgs, KeysShowArgs};
use crate::config::units::{near_miss, parse_duration};
use crate::output::{Failure, print_fields, print_json, print_line, print_table};

/// Returns what operators may ask of the store.
pub(crate) fn browse(store: &dyn Store) -> Result<&dyn BrowseStore, Failure> {
    store.require_browse().map_err(|error| unreadable(&error))
}

/// Lists the records that match to `out`, and prints how to continue the list to `talk`.
pub(crate) async fn list(
    store: &dyn BrowseStore,
    args: &KeysListArgs,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    let mut filter = filter(&args.which)?;
    filter.after = args.after.as_deref().map(parse_cursor).transpose()?;
    filter.limit = args.limit;
    let Page { items: mut records, next } = store.list(filter).await.map_err(|error| unreadable(&error))?;
    if args.which.dead_letters {
        // The filter includes marked records that a late response may still settle; they need no operator yet.
        records.retain(|stored| stored.record.is_dead_letter(stored.now));
    }
    if args.json {
        print_json(out, &records.iter().map(record_json).collect())?;
    } else {
        print_records(&records, out)?;
    }
    match next {
        Some(next) => print_line(talk, format_args!("there are more: `--after {next}`")),
        None if records.is_empty() => print_line(talk, "no record fits"),
        None => Ok(()),
    }
}

/// Shows the record whose id begins with these digits. If there are several, lists them and fails. `load` returns a record
/// with its response, which a list leaves out.
pub(crate) async fn show(
    store: &dyn BrowseStore,
    load: impl AsyncFnOnce(RecordId) -> Result<Option<StoredRecord>, StoreError>,
    args: &KeysShowArgs,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let prefix = parse_prefix(&args.id)?;
    let filter = RecordFilter::default().with(|filter| {
        filter.prefix = Some(prefix);
        filter.limit = AMBIGUOUS_MAX;
    });
    let Page { items: mut records, next } = store.list(filter).await.map_err(|error| unreadable(&error))?;
    if records.len() > 1 {
        if args.json {
            print_json(out, &records.iter().map(record_json).collect())?;
        } else {
            print_records(&records, out)?;
        }
        let many = if next.is_some() { "more than " } else { "" };
        let message = format!("{many}{} records begin with `{}`", records.len(), args.id);
        return Err(Failure::no(message).hint("give more digits: `ibid keys list --json` has ids in full"));
    }
    let Some(stored) = records.pop() else {
        let failure = Failure::no(format!("no record begins with `{}`", args.id));
        return Err(failure.hint("expired records are removed; `ibid keys list` shows what is there"));
    };
    let id = stored.record.id;
    let history = store.history(id).await.map_err(|error| unreadable(&error))?;
    // The reaper may remove it in between; then the list's copy is shown.
    let stored = load(id).await.map_err(|error| unreadable(&error))?.unwrap_or(stored);
    if args.json {
        let mut value = record_json(&stored);
        let response = stored.response.as_ref().and_then(SavedResponse::plain);
        value["response_bytes"] = response.map(|response| response.body.len()).into();
        value["history"] = history.iter().map(history_json).collect();
        return print_json(out, &value);
    }
    print_fields(out, &fields(&stored))?;
    print_line(out, "\nhistory")?;
    if history.is_empty() {
        print_line(out, "  nothing out of the ordinary")?;
    }
    for line in &history {
        let text = format!("  {}  {}  {}", rfc3339(line.at), line.what.name(), line.detail);
        print_line(out, text.trim_end())?;
    }
    Ok(())
}

pub(super) fn print_records(records: &[StoredRecord], out: &mut dyn Write) -> Result<(), Failure> {
    if records.is_empty() {
        return Ok(());
    }
    let rows = records.iter().map(|stored| {
        let record = &stored.record;
        let identity = &record.identity;
        vec![
            record.id.short(),
            state_words(stored),
            record.outcome().unwrap_or("-").to_owned(),
            record.note.status.map_or("-".to_owned(), |status| status.to_string()),
            record.attempt.to_string(),
            identity.tenant.as_str().to_owned(),
            format!("{} {}", identity.operation.method, identity.operation.path),
            identity.key.as_str().to_owned(),
            rfc3339(record.created_at),
            record.expires_at.map_or("-".to_owned(), rfc3339),
        ]
    });
    print_table(out, &COLUMNS, rows.collect())
}

/// Returns every field of a record, the most interesting first.
fn fields(stored: &StoredRecord) -> Vec<(&'static str, String)> {
    let record = &stored.record;
    let identity = &record.identity;
    let note = &record.note;
    let mut fields = vec![
        ("id", record.id.to_string()),
        ("state", state_words(stored)),
        ("outcome", record.outcome().unwrap_or("-").to_owned()),
        ("tenant", identity.tenant.as_str().to_owned()),
        ("operation", format!("{} {}", identity.operation.method, identity.operation.path)),
        ("key", identity.key.as_str().to_owned()),
        ("attempt", record.attempt.to_string()),
        ("version", version_words(record)),
        ("recovery point", record.point.to_string()),
        ("response", response_words(stored)),
        ("fingerprint", if record.fingerprint.is_some() { "kept" } else { "cleared" }.to_owned()),
        ("created", rfc3339(record.created_at)),
    ];
    let instants = [
        ("last run", record.ran_at),
        (record.state.due_label(), record.due_at),
        ("completed", record.completed_at),
        ("expires", record.expires_at),
        ("removed", record.purge_at),
        ("seen absent", note.absent_at.map(Timestamp::from_micros)),
    ];
    fields.extend(instants.iter().filter_map(|(name, at)| Some((*name, rfc3339((*at)?)))));
    let notes = [
        ("last error", note.last_error.map(|error| error.name().to_owned())),
        ("provider id", note.provider_id.clone()),
        ("lapses", (note.lapses > 0).then(|| note.lapses.to_string())),
        ("reconcile tries", (note.tries > 0).then(|| note.tries.to_string())),
        ("first trace", note.trace_id().map(str::to_owned)),
        ("phases", (!note.phases.is_empty()).then(|| note.phases.join(", "))),
        (
            "call in flight",
            note.calling.map(|point| format!("after recovery point {}", point.saturating_sub(1))),
        ),
        (
            "call in doubt",
            note.doubt.map(|point| format!("after recovery point {}", point.saturating_sub(1))),
        ),
    ];
    fields.extend(notes.into_iter().filter_map(|(name, text)| Some((name, text?))));
    let policy = crate::config::policy::fields(&record.policy);
    let usual = crate::config::policy::fields(&Default::default());
    let differs = policy.iter().zip(&usual).filter(|(one, other)| one != other);
    let words: Vec<String> = differs.map(|((key, value), _)| format!("{key} = {value}")).collect();
    fields.push(("policy", if words.is_empty() { "as built in".to_owned() } else { words.join(", ") }));
    fields
}

pub(super) fn record_json(stored: &StoredRecord) -> Value {
    let record = &stored.record;
    let identity = &record.identity;
    let note = &record.note;
    let at = |instant: Option<Timestamp>| instant.map(rfc3339);
    json!({
        "id": record.id.to_string(),
        "state": record.state.name(),
        "outcome": record.outcome(),
        "status": note.status,
        "dead_letter": record.is_dead_letter(stored.now),
        "owed": record.flags.owed,
        "async": record.flags.asynchronous,
        "retained": !record.flags.not_retained,
        "attempt": record.attempt,
        "tenant": identity.tenant.as_str(),
        "method": &*identity.operation.method,
        "path": &*identity.operation.path,
        "key": identity.key.as_str(),
        "version": version_words(record),
        "recovery_point": record.point,
        "phases": note.phases,
        "fingerprint": record.fingerprint.is_some(),
        "created_at": rfc3339(record.created_at),
        "ran_at": at(record.ran_at),
        "due_at": at(record.due_at),
        "completed_at": at(record.completed_at),
        "expires_at": at(record.expires_at),
        "purge_at": at(record.purge_at),
        "absent_at": at(note.absent_at.map(Timestamp::from_micros)),
        "last_error": note.last_error.map(|error| error.name()),
        "provider_id": note.provider_id,
        "lapses": note.lapses,
        "tries": note.tries,
        "trace": note.trace_id(),
        "policy": policy_json(&record.policy),
    })
}

fn history_json(line: &HistoryLine) -> Value {
    json!({ "at": rfc3339(line.at), "what": line.what.name(), "detail": line.detail })
}

fn state_words(stored: &StoredRecord) -> String {
    let record = &stored.record;
    let mark = if record.is_dead_letter(stored.now) { " (dead letter)" } else { "" };
    format!("{}{mark}", record.state.name())
}

fn version_words(record: &Record) -> String {
    format!("{}:{:016x}", record.version.count, record.version.nonce.0)
}

fn response_words(stored: &StoredRecord) -> String {
    match (&stored.response, stored.record.note.status) {
        (Some(SavedResponse::Plain(response)), _) => {
            format!("{}, {} bytes kept", response.status, response.body.len())
        }
        (Some(SavedResponse::Sealed { key_id, .. }), _) => format!("encrypted under key `{key_id}`"),
        (None, Some(status)) if stored.record.flags.not_retained => format!("{status}, not retained"),
        (None, Some(status)) => status.to_string(),
        (None, None) => "-".to_owned(),
    }
}

fn parse_state(word: &str) -> Result<State, Failure> {
    State::from_name(word).ok_or_else(|| no_state(word, "no state", &State::NAMES))
}

/// Explains that `word` is not one of the `names` that `--state` takes.
pub(super) fn no_state(word: &str, what: &str, names: &[&str]) -> Failure {
    let hint = match near_miss(word, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the states are {}", names.join(", ")),
    };
    Failure::usage(format!("`--state {word}` is {what}")).hint(hint)
}

pub(super) fn parse_prefix(text: &str) -> Result<IdPrefix, Failure> {
    text.parse().map_err(|error| {
        Failure::usage(format!("`{text}` is not the beginning of a record's id"))
            .because(error)
            .hint("ids are shown by `ibid keys list` and in every log line about a record")
    })
}

/// Returns the filter that these arguments describe.
pub(super) fn filter(which: &WhichArgs) -> Result<RecordFilter, Failure> {
    let exact = which.path.as_deref().map(PathPattern::of_path);
    let mut filter = RecordFilter::default();
    filter.state = which.state.as_deref().map(parse_state).transpose()?;
    filter.tenant = which.tenant.clone();
    filter.key = which.key.clone();
    filter.method = which.method.as_deref().map(str::to_uppercase);
    filter.path = exact.or(which.route.as_deref().map(PathPattern::of_route));
    filter.dead_letter = which.dead_letters;
    filter.created_from = which.created_from.as_deref().map(parse_instant).transpose()?;
    filter.created_before = which.created_before.as_deref().map(parse_instant).transpose()?;
    filter.older_than = which.older_than.as_deref().map(parse_age).transpose()?;
    Ok(filter)
}

fn parse_instant(text: &str) -> Result<Timestamp, Failure> {
    let parsed: Result<jiff::Timestamp, _> = text.parse();
    let instant = parsed.map_err(|error| {
        let failure = Failure::usage(format!("`{text}` is not an instant")).because(error);
        failure.hint("write it as `2026-11-16T09:30:00Z`")
    })?;
    Ok(Timestamp::from_micros(instant.as_microsecond()))
}

fn parse_age(text: &str) -> Result<std::time::Duration, Failure> {
    parse_duration(text).map_err(|form| Failure::usage(format!("`--older-than {text}` {form}")))
}

/// Returns the cursor after all ids that begin with this text; after a full id, that is the id itself.
fn parse_cursor(text: &str) -> Result<Cursor, Failure> {
    text.parse().map_err(|error: CursorError| Failure::usage(format!("`--after {text}`: {error}")))
}

pub(super) fn unreadable(error: &StoreError) -> Failure {
    let hint = if error.is_transient() { "try again" } else { "check that this is a store of ibid" };
    Failure::world("cannot read the store").because_of(error).hint(hint)
}

const COLUMNS: [&str; 10] =
    ["id", "state", "outcome", "status", "attempt", "tenant", "operation", "key", "created", "expires"];

/// Most records that are listed for an ambiguous id.
const AMBIGUOUS_MAX: u32 = 20;

#[cfg(test)]
mod tests;
