//! The table: responses that an effect owes.

use ibid_testkit::story::story;

#[test]
fn an_owed_response_waits_without_a_lease_for_its_effect() {
    story(
        "
        ann     begins                  -> run
        ann     owes the answer         -> owed
        record  is pending
        +30d
        sweeper sweeps                  -> ignored
        reaper  finds it never claimed  -> ignored
        wim     claims                  -> ignored
        bob     begins                  -> wait
        effect  is done 201             -> settled
        record  expires in 24h
        bob     begins                  -> replay 201
        effect  is done 201             -> ignored
        ",
    );
}

#[test]
fn a_dead_effect_leaves_the_outcome_unknown() {
    story(
        "
        ann       begins                  -> run
        ann       owes the answer         -> owed
        effect    is dead                 -> unsettled
        record    is unknown, dead letter
        bob       begins                  -> unknown
        operator  resolves executed 201   -> settled
        bob       begins                  -> replay 201
        ",
    );
}

#[test]
fn a_retried_dead_effect_settles_the_record() {
    story(
        "
        ann      begins           -> run
        ann      owes the answer  -> owed
        effect   is dead          -> unsettled
        bob      begins           -> unknown
        effect   is done 201      -> settled
        bob      begins           -> replay 201
    ",
    );
}

#[test]
fn an_effect_that_owes_nothing_changes_nothing() {
    story(
        "
        ann     begins        -> run
        effect  is done 201   -> ignored
        effect  is dead       -> ignored
        record  is in_progress
        ",
    );
}

#[test]
fn an_attempt_that_lost_its_record_can_owe_nothing() {
    story(
        "
        policy   on_lapse=retry
        ann      begins           -> run
        +30s
        bob      begins           -> run attempt 2
        ann      owes the answer  -> superseded
        record   is in_progress
        ",
    );
}
