//! Tells every rule of the state machine as a story. `ibid_testkit::story` describes the language.
//!
//! Each module has the stories of one part of the contract's section 3 (table or invariant), or of a section of the
//! protocol.

mod async_requests;
mod clock_jumps;
mod expiry;
mod external_calls;
mod lapses;
mod late_finishes;
mod leases;
mod lost_replies;
mod mismatches;
mod observations;
mod owed_responses;
mod phases;
mod record_policy;
mod released_keys;
mod responses;
mod story_language;
mod unknown_outcomes;
mod waiters;
