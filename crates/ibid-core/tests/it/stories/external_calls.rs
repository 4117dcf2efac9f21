//! External calls of a phase: open while they are made, in doubt if their result is lost.

use ibid_testkit::story::story;

#[test]
fn an_unverifiable_call_is_unknown_after_a_lapse() {
    for policy in ["on_lapse=resume", "on_lapse=retry"] {
        story(&format!(
            "
            policy   {policy}
            ann      begins             -> run
            ann      commits `ride`     -> advanced
            ann      calls the outside  -> advanced
            +31s                           (leases last 30s)
            eve      resumes            -> ignored
            bob      begins             -> unknown
            ann      commits `charged`  -> superseded
            ann      finishes 201       -> stored
            cat      begins             -> replay 201
        "
        ));
    }
}

#[test]
fn once_the_call_is_recorded_a_lapse_resumes_again() {
    story(
        "
        policy   on_lapse=resume
        ann      begins             -> run
        ann      calls the outside  -> advanced
        ann      commits `charged`  -> advanced
        +31s
        bob      begins             -> resume after `charged`
        ann      calls the outside  -> superseded
    ",
    );
}

#[test]
fn a_handler_failure_during_a_call_is_unknown() {
    story(
        "
        policy   on_lapse=resume on_server_error=retry
        ann      begins             -> run
        ann      calls the outside  -> advanced
        ann      finishes 500       -> unsettled
        bob      begins             -> unknown
        eve      resolves not executed -> settled
        bob      begins             -> run attempt 2
    ",
    );
}

#[test]
fn a_call_proven_not_made_lets_its_phase_run_again() {
    story(
        "
        policy   on_lapse=resume on_server_error=retry
        ann      begins             -> run
        ann      calls the outside  -> advanced
        ann      did not call       -> advanced
        ann      finishes 500       -> freed
        bob      begins             -> run attempt 2
    ",
    );
}

#[test]
fn proof_about_the_work_proves_nothing_about_an_open_call() {
    story(
        "
        policy   on_lapse=resume on_server_error=retry
        ann      begins                  -> run
        ann      calls the outside       -> advanced
        ann      proves nothing was sent -> unsettled
        bob      begins                  -> unknown
    ",
    );
}

#[test]
fn an_in_doubt_call_outlives_its_retention() {
    for end in ["finishes 429", "finishes 401", "proves nothing was sent"] {
        for policy in ["on_lapse=resume", "on_lapse=retry", "on_lapse=unknown"] {
            story(&format!(
                "
                policy   {policy} retention=1h
                ann      begins             -> run
                ann      commits `ride`     -> advanced
                ann      doubts its call
                ann      {end}              -> freed
                record   is retryable
                record   never expires
                +2h
                eve      purges             -> ignored
                eve      forgets            -> ignored
                bob      begins with body B -> mismatch
                bob      begins             -> resume after `ride`
                record   has generation 1
                bob      commits `charged`  -> advanced
                bob      finishes 429       -> freed
                record   expires in 1h      (what is recorded is in doubt no longer)
            "
            ));
        }
    }
}

#[test]
fn a_call_in_doubt_is_unknown_once_its_key_may_be_forgotten() {
    for first in [
        "bob begins -> unknown, dead letter",
        "eve sweeps -> settled",
        "bob begins as waiter -> unknown, dead letter",
    ] {
        story(&format!(
            "
            policy   on_lapse=resume retention=1h
            ann      begins           -> run
            ann      doubts its call
            ann      finishes 429     -> freed
            +23h
            eve      sweeps           -> ignored
            bob      begins           -> run attempt 2
            bob      finishes 429     -> freed
            +1h                          (it counts from the first request)
            eve      sweeps carefully -> wait
            {first}
            record   is unknown, dead letter
            record   has history unknown
            cat      begins           -> unknown, dead letter
            eve      resolves not executed -> settled
            record   expires in 1h
            cat      begins           -> run attempt 3
        "
        ));
    }
}

#[test]
fn attempts_that_skip_the_call_leave_it_in_doubt() {
    story(
        "
        policy   on_lapse=resume on_server_error=retry retention=1h
        ann      begins                  -> run
        ann      doubts its call
        ann      finishes 429            -> freed
        bob      begins                  -> run attempt 2
        bob      finishes 403            -> freed
        record   never expires
        cat      begins                  -> run attempt 3
        +31s
        dan      begins                  -> run attempt 4
        dan      proves nothing was sent -> freed
        record   never expires
        dan      decides: begins         -> run attempt 5
        dan      gave up                 -> freed
        record   never expires
        eva      begins                  -> run attempt 5
        eva      times out               -> unsettled
        eva      finishes 429            -> freed
        record   never expires
        +24h
        fay      begins                  -> unknown, dead letter
        record   has generation 1
    ",
    );
}

#[test]
fn an_in_doubt_call_of_a_lost_record_is_unknown() {
    for end in ["finishes 429", "proves nothing was sent"] {
        story(&format!(
            "
            policy   on_lapse=resume
            ann      begins          -> run
            ann      doubts its call
            eve      loses the row
            ann      {end}           -> unsettled
            bob      begins          -> unknown
        "
        ));
    }
}

#[test]
fn a_stored_response_clears_the_in_doubt_call() {
    story(
        "
        policy   on_lapse=resume retention=1h
        ann      begins          -> run
        ann      doubts its call
        ann      finishes 429    -> freed
        ann      finishes 201    -> stored
        record   expires in 1h
        bob      begins          -> replay 201
    ",
    );
}

#[test]
fn an_accepted_request_keeps_its_doubt_until_the_last_try() {
    story(
        "
        policy   answer=async on_lapse=resume max_attempts=2 retention=1h
        ann      begins async    -> accepted
        eve      claims          -> run
        eve      doubts its call
        eve      finishes 429    -> freed
        record   is pending
        +10s
        eve      claims          -> run attempt 2
        eve      finishes 429    -> freed
        record   is retryable, dead letter
        record   never expires
        +24h
        ann      begins async    -> unknown, dead letter
    ",
    );
}

#[test]
fn the_sweeper_resumes_in_doubt_calls_with_growing_pauses() {
    story(
        "
        policy   on_lapse=resume
        ann      begins           -> run
        ann      commits `ride`   -> advanced
        ann      doubts its call
        ann      finishes 429     -> freed
        record   is due in 2s
        eve      resumes          -> ignored
        +2s
        eve      resumes carefully -> wait
        eve      sweeps           -> ignored      (it can't run the handler)
        eve      decides: resumes -> resume after `ride`
        dan      resumes          -> resume after `ride`
        eve      commits what it decided -> refused
        record   has history resumed
        ann      begins           -> wait
        dan      finishes 429     -> freed
        record   is due in 4s
        +4s
        eve      resumes          -> resume after `ride`
        eve      commits `charged` -> advanced
        eve      finishes 201     -> stored
        ann      begins           -> replay 201
        record   has attempt 3
        record   has generation 1
    ",
    );
}

#[test]
fn the_sweeper_resumes_only_within_rule_and_key_window() {
    story(
        "
        policy   on_lapse=resume
        ann      begins          -> run
        ann      doubts its call
        ann      finishes 429    -> freed
        +24h
        eve      resumes         -> ignored
        eve      sweeps          -> settled
        record   is unknown, dead letter
    ",
    );
    for policy in ["on_lapse=unknown", "on_lapse=retry", "on_lapse=fail"] {
        story(&format!(
            "
            policy   {policy}
            ann      begins          -> run
            ann      doubts its call
            ann      finishes 429    -> freed
            record   is due in 24h
            +24h
            eve      resumes         -> ignored
            eve      sweeps          -> settled
            record   is unknown, dead letter
        "
        ));
    }
}
