//! The `record` line: checks of the stored record.

use ibid_core::change::BodyKind;
use ibid_core::record::Record;
use ibid_core::time::Timestamp;

use super::parse_words::duration;
use super::store::StoryStore;

/// Compares the stored record with the story's claim. `generations` is the number of generations so far.
pub(super) fn check_record(store: &StoryStore, generations: usize, claim: &str) -> Result<(), String> {
    let (row, now) = (store.record(), store.now);
    let remaining = |at: Option<Timestamp>| match at {
        Some(at) => format!("{:?}", at.since(now)),
        None => "never".into(),
    };
    let expected = |length: &str| duration(length).map(|length| format!("{length:?}"));
    let number = |text: &str| text.parse::<u64>().map(|n| n.to_string()).map_err(|e| e.to_string());
    let state = row.map_or("absent".to_owned(), |row| {
        row.state.name().to_owned() + if row.flags.dead_letter { ", dead letter" } else { "" }
    });
    let (first, rest) = claim.split_once(' ').map_or((claim, ""), |(first, rest)| (first, rest.trim()));
    let (is, should) = match (first, rest.split_once(' ').unwrap_or((rest, ""))) {
        ("is", ("due", at)) => (remaining(row.and_then(|r| r.due_at)), expected(in_what(at)?)?),
        ("is", _) => (state, rest.to_owned()),
        ("never", ("expires", _)) => (remaining(row.and_then(|r| r.expires_at)), "never".into()),
        ("expires", _) => (remaining(row.and_then(|r| r.expires_at)), expected(in_what(rest)?)?),
        ("goes", _) => (remaining(row.and_then(|r| r.purge_at)), expected(in_what(rest)?)?),
        ("answers", (status, _)) => {
            let is = row.and_then(|r| r.note.status).map_or("nothing".into(), |s| s.to_string());
            (is, status.to_owned())
        }
        ("has", ("attempt", n)) => (row.map_or(0, |r| r.attempt).to_string(), number(n)?),
        ("has", ("point", n)) => (row.map_or(0, |r| r.point).to_string(), number(n)?),
        ("has", ("generation", n)) => (generations.to_string(), number(n)?),
        ("has", ("no", "fingerprint")) => {
            (row.is_some_and(|r| r.fingerprint.is_none()).to_string(), "true".into())
        }
        ("keeps", (whose, "request")) => {
            let request = row.and_then(|row| store.body(row.birth, BodyKind::Request));
            let is = if request.is_some_and(|request| !request.is_empty()) { "its" } else { "no" };
            (is.to_owned(), whose.to_owned())
        }
        ("has", ("history", what)) => {
            let names: Vec<_> = store.history().iter().map(|line| line.what.name()).collect();
            match names.contains(&what) {
                true => return Ok(()),
                false => (format!("history of {names:?}"), what.to_owned()),
            }
        }
        _ => return Err(format!("unknown check `record {claim}`")),
    };
    match is == should {
        true => Ok(()),
        false => {
            let sketch = sketch(row, now);
            Err(format!("\n  expected: {should}\n  came:     {is}\n  record:   {sketch}"))
        }
    }
}

/// Formats the record in one line for failure messages.
pub(super) fn sketch(record: Option<&Record>, now: Timestamp) -> String {
    let Some(record) = record else {
        return "none".into();
    };
    let from_now = |at: Option<Timestamp>| at.map(|at| at.since(now));
    format!(
        "{} {:?} attempt {} point {} {:?} due in {:?} expires in {:?} goes in {:?} {:?}",
        record.state.name(),
        record.version,
        record.attempt,
        record.point,
        record.flags,
        from_now(record.due_at),
        from_now(record.expires_at),
        from_now(record.purge_at),
        record.note,
    )
}

fn in_what(words: &str) -> Result<&str, String> {
    words.strip_prefix("in ").map(str::trim).ok_or_else(|| format!("in how long? `{words}`"))
}
