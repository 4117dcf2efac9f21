//! Parsers for the words that several kinds of steps share.

use std::time::Duration;

use ibid_core::machine::AttemptResponse;
use ibid_core::proof::Proof;
use ibid_core::record::RecoveryPoint;
use ibid_core::time::Timestamp;

use super::inputs::answer;

/// Parses `201`, optionally followed by `as executed` or `as not executed`, and by `not retained` or `with retry-after`.
pub(super) fn given_answer(words: &str, from: &str) -> Result<AttemptResponse, String> {
    let (status, how) = words.split_once(' ').unwrap_or((words, ""));
    let status = status.parse().map_err(|_| format!("`{status}` is no status"))?;
    let mut answer = answer(status, from);
    let mut how = how.trim();
    for (word, proof) in [("as executed", Proof::Executed), ("as not executed", Proof::NotExecuted)] {
        if let Some(rest) = how.strip_prefix(word) {
            (answer.proof, how) = (Some(proof), rest);
        }
    }
    match how.trim() {
        "" => Ok(answer),
        "not retained" => Ok(AttemptResponse { kept: None, ..answer }),
        "with retry-after" => Ok(AttemptResponse { retry_after: true, ..answer }),
        other => Err(format!("unknown words `{other}` after the status")),
    }
}

/// Splits evidence into the claim and the instant it is about.
pub(super) fn evidence(what: &str, now: Timestamp) -> Result<(&str, Timestamp), String> {
    let Some((what, ago)) = what.split_once(" as of ") else {
        return Ok((what, now));
    };
    let ago = duration(ago.strip_suffix(" ago").ok_or("how long ago?")?)?;
    let micros = i64::try_from(ago.as_micros()).map_err(|error| error.to_string())?;
    Ok((what, Timestamp::from_micros(now.as_micros() - micros)))
}

pub(super) fn phase_point(phases: &mut Vec<String>, phase: &str) -> Result<RecoveryPoint, String> {
    if !phase.starts_with('`') {
        return Err(format!("a phase has its name in backticks, not `{phase}`"));
    }
    if let Some(digits) = phase.strip_prefix("`point ") {
        return digits.trim_end_matches('`').parse().map_err(|_| "a point is a number".to_owned());
    }
    let at = phases.iter().position(|known| known == phase).unwrap_or_else(|| {
        phases.push(phase.to_owned());
        phases.len() - 1
    });
    RecoveryPoint::try_from(at + 1).map_err(|error| error.to_string())
}

/// Parses durations such as `31s`, `1h` and `250ms`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no duration"))?;
    match &text[digits.len()..] {
        "us" => Ok(Duration::from_micros(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        "h" => Ok(Duration::from_secs(number * 3600)),
        "d" => Ok(Duration::from_secs(number * 86_400)),
        unit => Err(format!("`{unit}` is no unit of time")),
    }
}

/// Strips remarks from a line.
pub(super) fn remark_free(line: &str) -> &str {
    let line = line.split('#').next().unwrap_or_default();
    line.split(" (").next().unwrap_or_default().trim()
}
