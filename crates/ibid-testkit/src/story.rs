//! Stories: rules of the state machine written as steps of named actors, each with its expected outcome.
//!
//! A story runs on the pure machine and on a [`StoryStore`], a store with room for one record. It uses no HTTP, no I/O and
//! no real clock. The story language has one line per step:
//!
//! ```text
//! policy  payments lease=30s on_lapse=retry           rules of the requests that follow (a preset, then changes)
//! ann     begins  -> run                              an actor, what it does, and the outcome
//! +31s                                                advances the store's clock; -5s sets it back
//! record  is in_progress                              checks the stored record
//! ```
//!
//! Without a `policy` line the contract's defaults apply, with a lease of 30s. Text in parentheses or after `#` is a
//! remark. A step without `->` may have any outcome.
//!
//! **Requests**: `begins`, and after it any of `with body B` (another fingerprint), `as waiter`, `carefully`, `async`,
//! `as tenant T` (a row of another tenant under the same id). Outcomes: `run`, `run attempt 2`, ``resume after
//! `charged` ``, `accepted`, `replay 201`, `not retained`, `wait`, `wait, overlong`, `free`, `unknown`, `unknown, dead
//! letter`, `mismatch`, `expired`. `gave up`: the begin's reply never arrived and the client got 503.
//!
//! **Attempts**: `finishes 201`, and after it `as executed` or `as not executed` (what its fields prove), `not retained` or
//! `with retry-after`; `proves nothing was sent`, `times out`, `breaks off`, `panics`, `calls the outside` (an external
//! call that nothing can confirm later), `did not call`, ``commits `charged` ``, `owes the answer`, `claims`. Outcomes:
//! `stored`, `freed`, `unsettled`, `advanced`, `owed`, `superseded`. `renews` gives `renewed` or `lost`. `doubts its
//! call`: the attempt made an external call under a key, does not know the outcome, and reports that when it ends.
//!
//! **The others**: `sweeps`, `resumes` (a sweeper that can run the handler), `finds it never claimed`, `finds it outlived`, `purges`; `effect  is done 201` or `is dead`; `finds`
//! (reconciler), `hears` (webhook), `resolves` (operator), each with `executed 201`, `not executed` or `nothing`, and
//! `as of 10s ago` for old evidence; `forgets`. Outcomes: `settled`, `unsettled`, `later`, `forgotten`, `ignored`,
//! `purged`.
//!
//! **Races**: `decides: STEP` reads and decides now but writes nothing yet; `commits what it decided` writes it, as
//! stale as it then is, with `refused` if it lost the race. `loses the reply: STEP` writes, and the actor does not
//! learn it; `sends it again` issues the same write again. Of several such writes the oldest goes first.
//!
//! **Looks**: `record  is STATE` (or `absent`, also `STATE, dead letter`), `has attempt 2`, `has generation 2`,
//! `has point 1`, `has history lapse`, `has no fingerprint`, `answers 201`, `is due in 30s`, `expires in 1h`, `goes in
//! 2h`, `never expires`, `keeps its request`, `keeps no request`.

mod inputs;
mod parse_words;
mod policy;
mod record_check;
mod stage;
mod store;

pub use inputs::{act, answer, ask};
pub use store::StoryStore;

use parse_words::remark_free;
use record_check::sketch;
use stage::Stage;

/// Plays a story; panics at the first line whose outcome is not the expected one.
#[track_caller]
pub fn story(text: &str) {
    let mut stage = Stage::new();
    for (number, line) in text.lines().enumerate() {
        let text_line = remark_free(line);
        if text_line.is_empty() {
            continue;
        }
        let (step, expected) = match text_line.split_once("->") {
            Some((step, expected)) => (step.trim(), Some(expected.trim())),
            None => (text_line, None),
        };
        let came = match stage.play(step) {
            Ok(came) => came,
            Err(problem) => panic!("line {}: `{}`: {problem}", number + 1, line.trim()),
        };
        if let Some(expected) = expected
            && came != expected
        {
            panic!(
                "line {}: `{}`\n  expected: {expected}\n  came:     {came}\n  record:   {}",
                number + 1,
                line.trim(),
                sketch(stage.store.record(), stage.store.now)
            );
        }
    }
}
