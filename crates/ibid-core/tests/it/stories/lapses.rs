//! The table: a lapse, by the sweeper and by the next request.

use ibid_testkit::story::story;

#[test]
fn a_lapse_is_unknown_by_default() {
    story(
        "
        policy   settle=60s
        ann      begins         -> run
        +29s
        sweeper  sweeps         -> ignored
        +1s
        sweeper  sweeps         -> settled
        record   is unknown
        record   is due in 60s
        record   has history lapse
        bob      begins         -> unknown
        ",
    );
    story(
        "
        policy   settle=60s
        ann      begins         -> run
        +30s
        bob      begins         -> unknown
        record   is unknown
        record   has attempt 1
        ",
    );
}

#[test]
fn a_lapse_under_retry_may_run_again() {
    story(
        "
        policy   on_lapse=retry
        ann      begins  -> run
        +30s
        sweeper  sweeps  -> settled
        record   is retryable
        bob      begins  -> run attempt 2
        ",
    );
    story(
        "
        policy   on_lapse=retry
        ann      begins  -> run
        +30s
        bob      begins  -> run attempt 2
        record   has history takeover
        ",
    );
}

#[test]
fn a_lapse_under_resume_continues_after_the_recovery_point() {
    story(
        "
        policy   on_lapse=resume
        ann      begins             -> run
        ann      commits `charged`  -> advanced
        +31s
        bob      begins             -> resume after `charged`
        ann      finishes 201       -> superseded
        bob      finishes 201       -> stored
        cat      begins             -> replay 201
        ",
    );
    story(
        "
        policy   on_lapse=resume
        ann      begins             -> run
        ann      commits `charged`  -> advanced
        +31s
        sweeper  sweeps             -> settled
        record   is retryable
        bob      begins             -> resume after `charged`
        ",
    );
}

#[test]
fn a_lapse_under_fail_is_a_dead_letter_answered_with_500() {
    story(
        "
        policy   on_lapse=fail
        ann      begins                    -> run
        +30s
        sweeper  sweeps                    -> settled
        record   is completed, dead letter
        bob      begins                    -> replay 500
        ",
    );
    story(
        "
        policy   on_lapse=fail
        ann      begins                    -> run
        +30s
        bob      begins                    -> replay 500
        record   is completed, dead letter
        ",
    );
}

#[test]
fn a_lapsed_async_record_goes_back_to_wait_for_a_worker() {
    story(
        "
        policy   answer=async on_lapse=retry
        ann      begins async  -> accepted
        wim      claims        -> run
        +30s
        sweeper  sweeps        -> settled
        record   is pending
        +2s
        wat      claims        -> run attempt 2
        +30s
        ann      begins async  -> wait
        record   is pending
        ",
    );
}

#[test]
fn a_request_that_always_lapses_stops_after_max_attempts() {
    story(
        "
        policy   on_lapse=retry max_attempts=3 settle=60s
        ann      begins                  -> run
        +30s
        ann      begins                  -> run attempt 2
        +30s
        ann      begins                  -> run attempt 3
        +30s
        ann      begins                  -> unknown
        record   is unknown, dead letter
        ",
    );
    story(
        "
        policy   on_lapse=resume max_attempts=2
        ann      begins                  -> run
        +30s
        sweeper  sweeps                  -> settled
        ann      begins                  -> run attempt 2
        +30s
        sweeper  sweeps                  -> settled
        record   is unknown, dead letter
        ",
    );
}

#[test]
fn runs_that_did_not_lapse_are_no_poison() {
    story(
        "
        policy   on_lapse=retry max_attempts=2
        ann      begins        -> run
        ann      finishes 429  -> freed
        ann      begins        -> run attempt 2
        ann      finishes 429  -> freed
        ann      begins        -> run attempt 3
        +30s
        bob      begins        -> run attempt 4
        ",
    );
}

#[test]
fn a_sweeper_with_the_handler_resumes_lapsed_records() {
    story(
        "
        policy   on_lapse=resume max_attempts=2
        ann      begins             -> run
        ann      commits `charged`  -> advanced
        eve      resumes            -> ignored
        +31s
        eve      resumes            -> resume after `charged`
        record   has history takeover
        bob      begins             -> wait
        ann      finishes 201       -> superseded
        +31s
        eve      resumes            -> ignored
        eve      sweeps             -> settled
        record   is unknown, dead letter
    ",
    );
}

#[test]
fn only_records_begun_under_resume_are_resumed() {
    for policy in ["on_lapse=unknown", "on_lapse=retry", "on_lapse=fail"] {
        story(&format!(
            "
            policy   {policy}
            ann      begins  -> run
            +31s
            eve      resumes -> ignored
        "
        ));
    }
}
