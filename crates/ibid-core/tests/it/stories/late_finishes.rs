//! The table: late finishes.

use ibid_testkit::story::story;

#[test]
fn a_late_response_completes_an_unknown_record() {
    story(
        "
        ann      begins        -> run
        +30s
        sweeper  sweeps        -> settled
        record   is unknown, dead letter
        +10m
        ann      finishes 201  -> stored
        record   is completed
        record   expires in 24h
        record   has history late answer
        bob      begins        -> replay 201
        ",
    );
}

#[test]
fn a_late_response_completes_a_retryable_record() {
    story(
        "
        policy   on_lapse=retry
        ann      begins        -> run
        +30s
        sweeper  sweeps        -> settled
        record   is retryable
        ann      finishes 201  -> stored
        bob      begins        -> replay 201
        ",
    );
}

#[test]
fn a_late_proof_of_non_execution_frees_an_unknown_record() {
    story(
        "
        ann      begins                   -> run
        +30s
        sweeper  sweeps                   -> settled
        ann      proves nothing was sent  -> freed
        record   is retryable
        bob      begins                   -> run attempt 2
        ",
    );
    story(
        "
        ann      begins        -> run
        ann      times out     -> unsettled
        ann      finishes 429  -> freed
        bob      begins        -> run attempt 2
        ",
    );
}

#[test]
fn a_late_not_executed_leaves_a_retryable_record_alone() {
    story(
        "
        policy   on_lapse=retry
        ann      begins                   -> run
        +30s
        sweeper  sweeps                   -> settled
        ann      proves nothing was sent  -> freed
        ann      finishes 429             -> freed
        ann      times out                -> freed
        record   is retryable
        ",
    );
}

#[test]
fn a_late_ambiguous_response_leaves_the_outcome_unknown() {
    story(
        "
        ann      begins        -> run
        ann      times out     -> unsettled
        ann      finishes 500  -> unsettled
        ann      breaks off    -> unsettled
        record   is unknown, dead letter
        ",
    );
}

#[test]
fn a_late_response_under_a_newer_attempt_is_only_noted() {
    story(
        "
        policy  on_lapse=retry
        ann     begins                   -> run
        +30s
        bob     begins                   -> run attempt 2
        ann     finishes 201             -> superseded
        record  is in_progress
        record  has history late answer
        ann     proves nothing was sent  -> superseded
        ann     times out                -> superseded
        record  is in_progress
        bob     renews                   -> renewed
        bob     finishes 201             -> stored
        ",
    );
}

#[test]
fn a_late_response_after_anothers_response_is_a_dead_letter() {
    story(
        "
        policy  on_lapse=retry
        ann     begins                     -> run
        +30s
        bob     begins                     -> run attempt 2
        bob     finishes 402               -> stored
        ann     finishes 201               -> superseded
        record  is completed, dead letter
        record  answers 402
        cat     begins                     -> replay 402
        ",
    );
}

#[test]
fn a_late_success_after_its_stored_failure_is_a_dead_letter() {
    story(
        "
        policy   on_lapse=fail
        ann      begins                     -> run
        +30s
        sweeper  sweeps                     -> settled
        ann      finishes 201               -> superseded
        record   is completed, dead letter
        record   has history late answer
        bob      begins                     -> replay 500
        ",
    );
}

#[test]
fn a_late_response_that_agrees_changes_nothing() {
    story(
        "
        policy      settle=60s
        ann         begins               -> run
        ann         times out            -> unsettled
        reconciler  finds executed 201   -> settled
        ann         finishes 201         -> superseded
        record      is completed
        ",
    );
}

#[test]
fn a_late_response_completes_a_record_waiting_for_its_next_run() {
    story(
        "
        policy   answer=async on_lapse=retry
        ann      begins async             -> accepted
        wim      claims                   -> run
        +30s
        sweeper  sweeps                   -> settled
        record   is pending
        wim      proves nothing was sent  -> freed
        wim      times out                -> freed
        wim      finishes 429             -> freed
        wim      finishes 201             -> stored
        wat      claims                   -> ignored
        ann      begins async             -> replay 201
        ",
    );
    story(
        "
        policy    answer=async
        ann       begins async           -> accepted
        wim       claims                 -> run
        wim       times out              -> unsettled
        operator  resolves not executed  -> settled
        wim       finishes 201           -> stored
        ann       begins async           -> replay 201
        ",
    );
}

#[test]
fn a_late_worker_is_superseded_by_the_next_one() {
    story(
        "
        policy   answer=async on_lapse=retry
        ann      begins async  -> accepted
        wim      claims        -> run
        +30s
        sweeper  sweeps        -> settled
        +2s
        wat      claims        -> run attempt 2
        wim      finishes 201  -> superseded
        wat      finishes 402  -> stored
        ann      begins async  -> replay 402
        ",
    );
}

#[test]
fn a_late_response_revives_no_forgotten_or_expired_record() {
    story(
        "
        policy    on_lapse=retry
        ann       begins        -> run
        +30s
        bob       begins        -> run attempt 2
        bob       finishes 201  -> stored
        operator  forgets       -> forgotten
        ann       finishes 201  -> superseded
        record    has history late answer
        cat       begins        -> run
        ",
    );
    story(
        "
        policy    on_lapse=retry retention=1h
        ann       begins        -> run
        +30s
        bob       begins        -> run attempt 2
        bob       finishes 201  -> stored
        +1h
        ann       finishes 201  -> superseded
        cat       begins        -> run
        ",
    );
}

#[test]
fn a_finish_without_a_record_is_still_stored() {
    story(
        "
        ann     begins         -> run
        store   loses the row  -> lost
        ann     finishes 201   -> stored
        bob     begins         -> replay 201
        ",
    );
    story(
        "
        ann     begins                  -> run
        store   loses the row           -> lost
        ann     times out               -> unsettled
        record  is unknown, dead letter
        ",
    );
    story(
        "
        ann     begins                   -> run
        store   loses the row            -> lost
        ann     proves nothing was sent  -> freed
        record  is absent
        ",
    );
}

#[test]
fn a_finish_without_a_record_loses_to_a_newer_begin() {
    story(
        "
        ann     begins                   -> run
        store   loses the row            -> lost
        ann     decides: finishes 201    -> stored
        bob     begins                   -> run
        ann     commits what it decided  -> refused
        ann     finishes 201             -> superseded
        record  is in_progress
        record  has history late answer
        ",
    );
}
