//! Tells every rule of the state machine as a story. `ibid_testkit::story` describes the language.
//!
//! The stories are in the order of the contract's section 3 (table, then invariants) and of the protocol's sections.
//! Longer than most files, because it is a list of independent stories.

use ibid_testkit::story::story;

// The table: a first request.

#[test]
fn a_retry_gets_the_response_of_the_first_run() {
    story(
        "
        ann     begins        -> run
        record  is in_progress
        record  is due in 30s
        record  never expires
        ann     finishes 201  -> stored
        record  is completed
        record  answers 201
        record  expires in 24h
        bob     begins        -> replay 201
        record  has attempt 1
        ",
    );
}

#[test]
fn of_two_first_requests_the_one_that_inserts_the_row_runs() {
    story(
        "
        ann  decides: begins          -> run
        bob  decides: begins          -> run
        bob  commits what it decided  -> run
        ann  commits what it decided  -> refused
        ann  begins                   -> wait
        ",
    );
}

#[test]
fn an_async_request_is_accepted_and_run_by_one_worker() {
    story(
        "
        policy  answer=async pending_deadline=1h
        ann     begins async             -> accepted
        record  is pending
        record  is due in 0s
        record  has attempt 0
        record  keeps its request
        bob     begins async             -> wait
        wat     decides: claims          -> run
        wim     decides: claims          -> run
        wim     commits what it decided  -> run
        wat     commits what it decided  -> refused
        wat     claims                   -> ignored
        record  is in_progress
        record  has attempt 1
        record  is due in 30s
        record  keeps its request
        wim     finishes 201             -> stored
        record  keeps no request
        bob     begins async             -> replay 201
        ",
    );
}

#[test]
fn a_single_request_may_opt_into_async() {
    story(
        "
        ann     begins async  -> accepted
        wim     claims        -> run
        wim     finishes 201  -> stored
        ann     begins        -> replay 201
        ",
    );
}

#[test]
fn an_unclaimed_request_gets_408_after_its_deadline() {
    story(
        "
        policy  answer=async pending_deadline=1h
        ann     begins async            -> accepted
        +59m
        reaper  finds it never claimed  -> ignored
        +1m
        reaper  finds it never claimed  -> settled
        record  is completed
        record  keeps no request
        ann     begins async            -> replay 408
        wim     claims                  -> ignored
        ",
    );
}

#[test]
fn a_worker_begins_nothing_after_the_deadline() {
    story(
        "
        policy  answer=async pending_deadline=1h
        ann     begins async  -> accepted
        +1h
        wim     claims        -> settled
        ann     begins async  -> replay 408
        ",
    );
}

#[test]
fn a_worker_and_the_reaper_do_not_both_take_a_pending_record() {
    story(
        "
        policy  answer=async pending_deadline=1h
        ann     begins async                     -> accepted
        wim     decides: claims                  -> run
        wat     decides: claims                  -> run
        +1h
        reaper  decides: finds it never claimed  -> settled
        wim     commits what it decided          -> run
        reaper  commits what it decided          -> refused
        reaper  finds it never claimed           -> ignored
        wat     commits what it decided          -> refused
        wim     finishes 201                     -> stored
        ",
    );
    story(
        "
        policy  answer=async pending_deadline=1h
        ann     begins async             -> accepted
        wim     decides: claims          -> run
        +1h
        reaper  finds it never claimed   -> settled
        wim     commits what it decided  -> refused
        wim     claims                   -> ignored
        ",
    );
}

#[test]
fn a_record_that_ran_once_is_no_longer_never_claimed() {
    story(
        "
        policy  answer=async pending_deadline=1h
        ann     begins async              -> accepted
        wim     claims                    -> run
        wim     proves nothing was sent   -> freed
        record  is pending
        +2h
        reaper  finds it never claimed    -> ignored
        ",
    );
}

// The table: reports of an attempt, in time.

#[test]
fn a_client_error_is_stored_like_any_response() {
    story(
        "
        ann  begins        -> run
        ann  finishes 422  -> stored
        ann  begins        -> replay 422
        ",
    );
}

#[test]
fn a_record_proven_not_executed_is_run_again_by_one_request() {
    story(
        "
        ann     begins                   -> run
        ann     proves nothing was sent  -> freed
        record  is retryable
        record  expires in 24h
        bob     decides: begins          -> run attempt 2
        cat     decides: begins          -> run attempt 2
        cat     commits what it decided  -> run attempt 2
        bob     commits what it decided  -> refused
        bob     begins                   -> wait
        cat     finishes 201             -> stored
        bob     begins                   -> replay 201
        ",
    );
}

#[test]
fn a_status_of_the_free_list_releases_the_key() {
    for status in ["425", "429", "501", "409 with retry-after", "423 with retry-after"] {
        story(&format!(
            "
            ann     begins              -> run
            ann     finishes {status}   -> freed
            record  is retryable
            ann     begins with body B  -> mismatch
            ann     begins              -> run attempt 2
            ",
        ));
    }
}

#[test]
fn a_conflict_without_retry_after_is_stored() {
    story(
        "
        ann  begins        -> run
        ann  finishes 409  -> stored
        ann  begins        -> replay 409
        ",
    );
}

#[test]
fn after_401_and_403_no_request_holds_the_key() {
    for status in [401, 403] {
        story(&format!(
            "
            ann     begins with body A  -> run
            ann     finishes {status}   -> freed
            record  has no fingerprint
            bob     begins with body B as waiter  -> free
            bob     begins with body B  -> run
            ann     begins with body A  -> mismatch
            bob     finishes 201        -> stored
            ann     begins with body A  -> mismatch
            ",
        ));
    }
}

#[test]
fn a_first_attempts_401_or_403_leaves_a_row_for_minutes() {
    for status in [401, 403] {
        story(&format!(
            "
            policy  retention=24h tombstone=48h after_expiry=refuse
            ann     begins with body A   -> run
            ann     finishes {status}    -> freed
            record  expires in 10m
            record  goes in 10m
            ann     decides: begins      -> run
            ann     gave up              -> freed
            record  goes in 10m
            +10m
            bob     begins with body B   -> run
            bob     finishes 201         -> stored
            record  expires in 24h
            ",
        ));
    }
    // The row never stays longer than the retention.
    story(
        "
        policy  retention=5m
        ann     begins        -> run
        ann     finishes 401  -> freed
        record  expires in 5m
        ",
    );
    // After a refusal that releases the key only for the same request, and after one of a later run, the row stays for
    // the retention.
    for first in ["finishes 429", "proves nothing was sent"] {
        story(&format!(
            "
            policy  retention=24h
            ann     begins        -> run
            ann     {first}       -> freed
            record  expires in 24h
            ann     begins        -> run attempt 2
            ann     finishes 401  -> freed
            record  expires in 24h
            ",
        ));
    }
}

#[test]
fn a_request_with_a_next_run_keeps_its_fingerprint_after_401() {
    story(
        "
        policy  answer=async
        ann     begins with body A async  -> accepted
        wim     claims                    -> run
        wim     finishes 401              -> freed
        record  is pending
        bob     begins with body B async  -> mismatch
        +2s
        wim     claims                    -> run attempt 2
        wim     finishes 201              -> stored
        bob     begins with body B async  -> mismatch
        ann     begins with body A async  -> replay 201
        ",
    );
}

#[test]
fn a_record_with_a_phase_keeps_its_fingerprint_after_401() {
    story(
        "
        ann     begins with body A        -> run
        ann     commits `charged`         -> advanced
        ann     finishes 401              -> freed
        bob     begins with body B        -> mismatch
        ann     begins with body A        -> resume after `charged`
        ",
    );
}

#[test]
fn another_request_under_a_released_key_is_a_new_generation() {
    story(
        "
        ann     begins with body A        -> run
        ann     finishes 401              -> freed
        bob     begins with body B        -> run
        record  has generation 2
        record  has attempt 1
        ",
    );
    story(
        "
        policy  answer=async
        ann     decides: begins async     -> accepted
        ann     gave up                   -> freed
        ann     begins async              -> accepted
        record  is pending
        wim     claims                    -> run
        ",
    );
}

#[test]
fn an_async_record_that_was_not_executed_waits_for_its_next_run() {
    story(
        "
        policy  answer=async
        ann     begins async  -> accepted
        wim     claims        -> run
        wim     finishes 429  -> freed
        record  is pending
        record  is due in 2s
        record  never expires
        wim     claims        -> ignored
        ann     begins async  -> wait
        +2s
        wim     claims        -> run attempt 2
        wim     finishes 429  -> freed
        record  is due in 4s
        ",
    );
}

#[test]
fn an_async_request_ends_as_a_dead_letter_after_its_tries() {
    story(
        "
        policy  answer=async max_attempts=2 retention=24h
        ann     begins async             -> accepted
        wim     claims                   -> run
        wim     proves nothing was sent  -> freed
        record  is pending
        +2s
        wim     claims                   -> run attempt 2
        wim     finishes 429             -> freed
        record  is retryable, dead letter
        record  has history settled
        record  keeps no request
        record  expires in 24h
        +5m
        wim     claims                   -> ignored
        bob     begins with body B async -> mismatch
        ann     begins async             -> accepted
        record  is pending
        record  keeps its request
        wim     claims                   -> run attempt 3
        wim     finishes 201             -> stored
        ann     begins async             -> replay 201
        ",
    );
}

#[test]
fn a_record_released_after_a_phase_resumes_after_it() {
    story(
        "
        policy  answer=async max_attempts=1
        ann     begins async             -> accepted
        wim     claims                   -> run
        wim     commits `charged`        -> advanced
        wim     finishes 429             -> freed
        record  is retryable, dead letter
        record  keeps no request
        ann     begins                   -> resume after `charged`
        ",
    );
}

#[test]
fn a_released_sync_record_may_be_retried_async() {
    story(
        "
        ann     begins         -> run
        ann     finishes 429   -> freed
        bob     begins async as waiter  -> free
        ann     begins async   -> accepted
        record  is pending
        record  never expires
        wim     claims         -> run attempt 2
        wim     finishes 201   -> stored
        record  keeps no request
        ann     begins         -> replay 201
        ",
    );
}

#[test]
fn an_acceptance_without_a_reply_is_undone() {
    story(
        "
        ann     loses the reply: begins async
        ann     gave up          -> freed
        record  is retryable
        record  keeps no request
        wim     claims           -> ignored
        +2h
        ann     begins async     -> accepted
        wim     claims           -> run
        ",
    );
    story(
        "
        ann     loses the reply: begins async
        wim     claims           -> run
        ann     gave up          -> ignored
        wim     finishes 201     -> stored
        ann     begins async     -> replay 201
        ",
    );
}

#[test]
fn a_completed_record_deletes_its_stored_request() {
    story(
        "
        policy    answer=async on_lapse=resume
        ann       begins async             -> accepted
        wim       claims                   -> run
        wim       times out                -> unsettled
        record    keeps its request
        operator  resolves executed 201    -> settled
        record    keeps no request
        record    answers 201
        ",
    );
}

#[test]
fn an_uncertain_result_is_unknown_and_not_run_again() {
    for how in ["times out", "breaks off", "panics", "finishes 500", "finishes 502", "finishes 504"] {
        story(&format!(
            "
            policy  settle=60s
            ann     begins            -> run
            ann     {how}             -> unsettled
            record  is unknown
            record  is due in 60s
            record  never expires
            record  has history unknown
            bob     begins            -> unknown
            bob     begins as waiter  -> unknown
            bob     begins carefully  -> unknown
            +400d
            bob     begins            -> unknown
            ",
        ));
    }
}

#[test]
fn an_unknown_outcome_without_lookups_is_a_dead_letter() {
    story(
        "
        ann     begins                  -> run
        ann     times out               -> unsettled
        record  is unknown, dead letter
        bob     begins                  -> unknown
        ",
    );
}

#[test]
fn a_server_error_is_freed_or_stored_where_the_policy_says_so() {
    story(
        "
        policy  on_server_error=retry
        ann     begins        -> run
        ann     finishes 500  -> freed
        ann     begins        -> run attempt 2
        ",
    );
    story(
        "
        policy  on_server_error=store
        ann     begins        -> run
        ann     finishes 500  -> stored
        ann     begins        -> replay 500
        ",
    );
}

#[test]
fn a_status_that_proves_nothing_frees_nothing() {
    for status in ["408", "502", "503", "503 with retry-after", "504", "520"] {
        for rules in ["on_server_error=unknown", "on_server_error=retry", "on_server_error=store"] {
            story(&format!(
                "
                policy  {rules}
                ann     begins             -> run
                ann     finishes {status}  -> unsettled
                record  is unknown, dead letter
                ann     begins             -> unknown
                "
            ));
        }
    }
}

#[test]
fn a_late_503_or_408_does_not_free_an_unknown_record() {
    for status in [408, 500, 503] {
        story(&format!(
            "
            ann     begins             -> run
            ann     times out          -> unsettled
            ann     finishes {status}  -> unsettled
            record  is unknown, dead letter
            "
        ));
        story(&format!(
            "
            policy  answer=async
            ann     begins async       -> accepted
            wim     claims             -> run
            wim     finishes {status}  -> unsettled
            record  is unknown, dead letter
            ann     begins async       -> unknown
            "
        ));
    }
}

#[test]
fn no_dead_letter_while_a_late_response_may_come() {
    story(
        "
        policy  upstream_timeout=30s linger=30s
        ann     begins        -> run
        +30s
        ann     times out     -> unsettled
        bob     begins        -> unknown
        +29s
        bob     begins        -> unknown
        +1s
        bob     begins        -> unknown, dead letter
        ann     finishes 201  -> stored
        ",
    );
    story(
        "
        policy  lease=10s upstream_timeout=30s linger=30s
        ann     begins  -> run
        +11s
        bob     begins  -> unknown
        +48s
        bob     begins  -> unknown
        +1s
        bob     begins  -> unknown, dead letter
        ",
    );
}

#[test]
fn an_unknown_outcome_expires_where_the_route_says_so() {
    story(
        "
        policy  unknown_retention=2h tombstone=1h
        ann     begins             -> run
        ann     times out          -> unsettled
        record  never expires
        record  is due in 2h
        +119m
        rip     finds it outlived  -> ignored
        bob     begins             -> unknown, dead letter
        +1m
        bob     begins             -> unknown, dead letter
        rip     finds it outlived  -> settled
        record  has history settled
        record  goes in 1h
        ann     finishes 201       -> superseded
        rip     finds it outlived  -> ignored
        bob     begins with body B -> run
        ",
    );
    story(
        "
        policy  unknown_retention=2h tombstone=1h after_expiry=refuse
        ann     begins             -> run
        ann     times out          -> unsettled
        +2h
        rip     finds it outlived  -> settled
        bob     begins             -> expired
        rec     finds executed 201 -> ignored
        ",
    );
    story(
        "
        policy  settle=60s tries=1 unknown_retention=2h
        ann     begins             -> run
        ann     times out          -> unsettled
        +3h
        rip     finds it outlived  -> ignored
        rec     finds nothing      -> later
        record  is unknown, dead letter
        record  is due in 2h
        +2h
        rip     finds it outlived  -> settled
        ",
    );
    story(
        "
        ann     begins             -> run
        ann     times out          -> unsettled
        +9999h
        rip     finds it outlived  -> ignored
        bob     begins             -> unknown, dead letter
        ",
    );
}

#[test]
fn proof_takes_precedence_over_the_status() {
    story(
        "
        ann  begins                    -> run
        ann  finishes 503 as executed  -> stored
        ann  begins                    -> replay 503
        ",
    );
    story(
        "
        ann  begins                        -> run
        ann  finishes 503 as not executed  -> freed
        ann  begins                        -> run attempt 2
        ann  finishes 201 as not executed  -> freed
        ann  begins                        -> run attempt 3
        ann  times out                     -> unsettled
        ann  finishes 503 as not executed  -> freed
        ",
    );
}

#[test]
fn proof_on_an_unfinished_response_does_not_count() {
    story(
        "
        ann  begins                                     -> run
        ann  finishes 201 as not executed not retained  -> unsettled
        ",
    );
    story(
        "
        ann  begins                                 -> run
        ann  finishes 503 as executed not retained  -> unsettled
        ",
    );
    story(
        "
        ann  begins                                 -> run
        ann  finishes 201 as executed not retained  -> stored
        ",
    );
}

#[test]
fn a_response_that_is_not_retained_still_completes() {
    story(
        "
        ann     begins                     -> run
        ann     finishes 201 not retained  -> stored
        record  is completed
        bob     begins                     -> not retained
        bob     begins with body B         -> mismatch
        ",
    );
}

// The table: responses that an effect owes.

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

// The table: a lapse, by the sweeper and by the next request.

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

// The table: late finishes.

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

// The table: an unknown outcome is settled.

#[test]
fn any_observer_that_finds_it_executed_completes_it() {
    for finder in ["reconciler  finds", "webhook  hears", "operator  resolves"] {
        story(&format!(
            "
            policy  settle=60s
            ann     begins                  -> run
            ann     times out               -> unsettled
            +10s
            {finder}  executed 402          -> settled
            record  is completed
            record  expires in 24h
            bob     begins                  -> replay 402
            ",
        ));
    }
}

#[test]
fn an_operator_is_believed_at_once_that_nothing_was_executed() {
    story(
        "
        ann       begins                 -> run
        ann       times out              -> unsettled
        operator  resolves not executed  -> settled
        record    is retryable
        bob       begins                 -> run attempt 2
        ",
    );
}

#[test]
fn a_webhook_not_executed_counts_only_after_the_attempts_end() {
    story(
        "
        policy   upstream_timeout=30s linger=90s
        ann      begins                           -> run
        +30s
        ann      times out                        -> unsettled
        webhook  hears not executed               -> ignored
        +89s
        webhook  hears not executed               -> ignored
        bob      begins                           -> unknown
        +60s                                         (the event took a minute to arrive)
        webhook  hears not executed as of 60s ago -> ignored
        record   is unknown, dead letter
        webhook  hears not executed as of 59s ago -> settled
        record   is retryable
        bob      begins                           -> run attempt 2
        ",
    );
}

#[test]
fn not_executed_during_a_delivery_lets_no_retry_run() {
    story(
        "
        ann      begins                           -> run
        +2s                                          (the provider drops a first intent, ann's call continues)
        ann      times out                        -> unsettled
        webhook  hears not executed as of 1s ago  -> ignored
        bob      begins                           -> unknown
        ann      finishes 201                     -> stored
        bob      begins                           -> replay 201
        ",
    );
}

#[test]
fn a_reconciler_must_see_not_executed_twice_settle_apart() {
    story(
        "
        policy      settle=60s
        ann         begins              -> run
        ann         times out           -> unsettled
        +60s
        reconciler  finds not executed  -> later
        record      is unknown
        record      is due in 60s
        +59s
        reconciler  finds not executed  -> ignored
        +1s
        reconciler  finds not executed  -> settled
        record      is retryable
        record      has history reconcile try
        ",
    );
}

#[test]
fn not_executed_is_ignored_until_the_attempts_linger_ends() {
    story(
        "
        policy      settle=60s upstream_timeout=30s linger=90s
        ann         begins              -> run
        ann         times out           -> unsettled
        record      is due in 120s
        +60s
        reconciler  finds not executed  -> ignored
        +60s
        reconciler  finds not executed  -> later
        record      is due in 60s
        +60s
        reconciler  finds not executed  -> settled
        ",
    );
}

#[test]
fn executed_after_a_first_not_there_completes_the_record() {
    story(
        "
        policy      settle=60s
        ann         begins              -> run
        ann         times out           -> unsettled
        +60s
        reconciler  finds not executed  -> later
        +60s
        reconciler  finds executed 201  -> settled
        bob         begins              -> replay 201
        ",
    );
}

#[test]
fn concurrent_reconcilers_use_up_one_try() {
    story(
        "
        policy  settle=60s tries=2
        ann     begins                           -> run
        ann     times out                        -> unsettled
        +60s
        rita    finds nothing                    -> later
        rob     finds nothing                    -> ignored
        rob     finds not executed as of 1s ago  -> ignored
        record  is unknown
        record  is due in 2s
        bob     begins                           -> unknown
        +2s
        rob     finds nothing                    -> later
        record  is unknown, dead letter
        rita    finds nothing                    -> ignored
        ",
    );
}

#[test]
fn two_lookups_count_only_if_made_settle_apart() {
    story(
        "
        policy  settle=60s
        ann     begins                            -> run
        ann     times out                         -> unsettled
        +60s
        rita    finds not executed                -> later
        +60s                                         (rob looked when rita did, and is slow to say so)
        rob     finds not executed as of 60s ago  -> ignored
        record  is unknown
        rob     finds not executed                -> settled
        ",
    );
}

#[test]
fn a_lookup_without_a_result_discards_the_first_not_there() {
    story(
        "
        policy      settle=60s
        ann         begins              -> run
        ann         times out           -> unsettled
        +60s
        reconciler  finds not executed  -> later
        +60s
        reconciler  finds nothing       -> later
        +60s
        reconciler  finds not executed  -> later
        +60s
        reconciler  finds not executed  -> settled
        ",
    );
}

#[test]
fn after_the_last_lookup_it_is_a_dead_letter() {
    story(
        "
        policy      settle=60s tries=2
        ann         begins                 -> run
        ann         times out              -> unsettled
        +60s
        reconciler  finds nothing          -> later
        bob         begins                 -> unknown
        +60s
        reconciler  finds nothing          -> later
        record      is unknown, dead letter
        bob         begins                 -> unknown, dead letter
        operator    resolves not executed  -> settled
        bob         begins                 -> run attempt 2
        ",
    );
}

#[test]
fn after_a_clock_jump_the_sweeper_resumes_nothing() {
    for (rule, careful) in
        [("retry", "wait"), ("resume", "wait"), ("unknown", "settled"), ("fail", "settled")]
    {
        story(&format!(
            "
            policy   on_lapse={rule}
            ann      begins             -> run
            +30s
            sweeper  resumes carefully  -> ignored
            sweeper  sweeps carefully   -> {careful}
            ",
        ));
    }
    story(
        "
        policy   on_lapse=retry max_attempts=1
        ann      begins            -> run
        +30s
        sweeper  sweeps carefully  -> settled
        record   is unknown, dead letter
        ",
    );
}

#[test]
fn poison_stays_a_dead_letter_while_the_reconciler_looks() {
    story(
        "
        policy      on_lapse=retry max_attempts=1 settle=60s
        ann         begins                  -> run
        +30s
        sweeper     sweeps                  -> settled
        record      is unknown, dead letter
        +60s
        reconciler  finds nothing           -> later
        record      is unknown, dead letter
        reconciler  finds executed 201      -> settled
        record      is completed
        ",
    );
}

#[test]
fn an_async_record_found_not_executed_waits_for_its_next_run() {
    story(
        "
        policy    answer=async
        ann       begins async           -> accepted
        wim       claims                 -> run
        wim       times out              -> unsettled
        operator  resolves not executed  -> settled
        record    is pending
        +2s
        wim       claims                 -> run attempt 2
        ",
    );
}

#[test]
fn the_next_attempt_starts_its_lookups_from_zero() {
    story(
        "
        policy      settle=60s
        ann         begins                 -> run
        ann         times out              -> unsettled
        +60s
        reconciler  finds not executed     -> later
        operator    resolves not executed  -> settled
        bob         begins                 -> run attempt 2
        bob         times out              -> unsettled
        +60s
        reconciler  finds not executed     -> later
        +60s
        reconciler  finds not executed     -> settled
        ",
    );
}

#[test]
fn evidence_from_before_the_attempt_never_settles_it() {
    for finder in ["reconciler  finds", "webhook  hears", "operator  resolves"] {
        story(&format!(
            "
            policy  settle=60s
            +1h
            ann     begins                        -> run
            +10s
            ann     times out                     -> unsettled
            {finder}  executed 201 as of 11s ago  -> ignored
            {finder}  not executed as of 11s ago  -> ignored
            record  is unknown
            {finder}  executed 201 as of 9s ago   -> settled
            ",
        ));
    }
}

#[test]
fn evidence_settles_only_unknown_records() {
    for finder in ["reconciler  finds", "webhook  hears", "operator  resolves"] {
        story(&format!(
            "
            policy  settle=60s
            {finder}  executed 201  -> ignored
            ann     begins          -> run
            {finder}  executed 201  -> ignored
            {finder}  not executed  -> ignored
            ann     finishes 429    -> freed
            {finder}  executed 201  -> ignored
            ann     begins          -> run attempt 2
            ann     finishes 201    -> stored
            {finder}  executed 402  -> ignored
            {finder}  not executed  -> ignored
            record  answers 201
            ",
        ));
    }
}

#[test]
fn a_late_response_and_a_reconciler_settle_once() {
    story(
        "
        policy      settle=60s
        ann         begins                        -> run
        ann         times out                     -> unsettled
        reconciler  decides: finds executed 200   -> settled
        ann         finishes 201                  -> stored
        reconciler  commits what it decided       -> refused
        reconciler  finds executed 200            -> ignored
        bob         begins                        -> replay 201
        ",
    );
}

// The table: expiry.

#[test]
fn expiry_comes_before_every_comparison() {
    story(
        "
        policy  retention=1h
        ann     begins              -> run
        ann     finishes 201        -> stored
        record  expires in 1h
        +3599s
        ann     begins with body B  -> mismatch
        ann     begins              -> replay 201
        +1s
        bob     begins as waiter    -> free
        bob     begins with body B  -> run
        record  has generation 2
        ann     begins with body A  -> mismatch
        ",
    );
    story(
        "
        policy  retention=1h
        ann     begins              -> run
        ann     finishes 429        -> freed
        +1h
        bob     begins with body B  -> run
        record  has generation 2
        ",
    );
}

#[test]
fn retention_counts_from_completion_and_not_from_the_beginning() {
    story(
        "
        policy  retention=1h lease=59m max_run=2h
        ann     begins         -> run
        +50m
        ann     renews         -> renewed
        +50m
        record  never expires
        ann     finishes 201   -> stored
        record  expires in 1h
        +59m
        bob     begins         -> replay 201
        ",
    );
}

#[test]
fn a_retryable_record_counts_from_its_own_write() {
    story(
        "
        policy  retention=1h
        ann     begins              -> run
        ann     finishes 429        -> freed
        +50m
        ann     begins              -> run attempt 2
        ann     finishes 429        -> freed
        record  expires in 1h
        +50m
        ann     begins              -> run attempt 3
        ",
    );
}

#[test]
fn a_tombstone_refuses_an_expired_key() {
    story(
        "
        policy  retention=1h tombstone=1h after_expiry=refuse
        ann     begins              -> run
        ann     finishes 201        -> stored
        record  goes in 2h
        +1h
        ann     begins              -> expired
        ann     begins with body B  -> expired
        ann     begins as waiter    -> expired
        reaper  purges              -> ignored
        +1h
        bob     begins with body B  -> run
        ",
    );
}

#[test]
fn one_of_two_requests_reuses_an_expired_key() {
    story(
        "
        policy  retention=1h
        ann     begins                   -> run
        ann     finishes 201             -> stored
        +1h
        bob     decides: begins          -> run
        cat     decides: begins          -> run
        bob     commits what it decided  -> run
        cat     commits what it decided  -> refused
        cat     begins                   -> wait
        ",
    );
}

#[test]
fn open_records_never_expire() {
    story(
        "
        policy  retention=1h
        ann     begins         -> run
        record  never expires
        ann     times out      -> unsettled
        record  never expires
        +400d
        reaper  purges         -> ignored
        bob     begins         -> unknown, dead letter
        ",
    );
    story(
        "
        policy  retention=1h
        ann     begins async     -> accepted
        record  never expires
        wim     claims           -> run
        wim     owes the answer  -> owed
        record  never expires
        +400d
        reaper  purges           -> ignored
        ",
    );
}

#[test]
fn old_versions_fit_nothing_after_a_purge() {
    story(
        "
        policy  retention=1h on_lapse=retry
        ann     begins                   -> run
        bob     begins                   -> wait
        +30s
        bob     decides: begins          -> run attempt 2
        sweeper sweeps                   -> settled
        +1h
        reaper  purges                   -> purged
        record  is absent
        cat     begins                   -> run
        bob     commits what it decided  -> refused
        ann     renews                   -> lost
        record  has generation 2
        ",
    );
}

// Invariant 1: one live lease, and late writes are refused.

#[test]
fn a_renewed_lease_refuses_a_takeover() {
    for policy in ["on_lapse=unknown", "on_lapse=retry", "on_lapse=resume", "on_lapse=fail"] {
        story(&format!(
            "
            policy   {policy}
            ann      begins                   -> run
            +30s
            bob      decides: begins
            sweeper  decides: sweeps          -> settled
            ann      renews                   -> renewed
            bob      commits what it decided  -> refused
            sweeper  commits what it decided  -> refused
            record   is in_progress
            bob      begins                   -> wait
            ann      finishes 201             -> stored
            ",
        ));
    }
}

#[test]
fn a_renewal_does_not_change_the_version() {
    story(
        "
        ann      begins                   -> run
        ann      decides: finishes 201    -> stored
        ann      renews                   -> renewed
        ann      commits what it decided  -> stored
        ",
    );
}

#[test]
fn a_late_holders_renewal_is_lost() {
    story(
        "
        policy   on_lapse=retry
        ann      begins  -> run
        +30s
        bob      begins  -> run attempt 2
        ann      renews  -> lost
        +29s
        bob      renews  -> renewed
        ",
    );
}

#[test]
fn a_late_holders_write_is_refused_and_changes_nothing() {
    story(
        "
        policy   on_lapse=retry
        ann      begins                   -> run
        ann      decides: finishes 201    -> stored
        +30s
        bob      begins                   -> run attempt 2
        ann      commits what it decided  -> refused
        record   is in_progress
        bob      finishes 402             -> stored
        ",
    );
}

#[test]
fn of_two_takeovers_one_wins() {
    story(
        "
        policy   on_lapse=retry
        ann      begins                   -> run
        +30s
        bob      decides: begins          -> run attempt 2
        cat      decides: begins          -> run attempt 2
        sweeper  decides: sweeps          -> settled
        cat      commits what it decided  -> run attempt 2
        bob      commits what it decided  -> refused
        sweeper  commits what it decided  -> refused
        ",
    );
}

// Invariant 3: the fingerprint.

#[test]
fn another_request_under_the_key_is_a_mismatch_in_every_state() {
    story(
        "
        policy    answer=async
        ann       begins async          -> accepted
        bob       begins with body B    -> mismatch
        ",
    );
    story(
        "
        policy    on_lapse=retry
        ann       begins                         -> run
        bob       begins with body B             -> mismatch
        bob       begins with body B as waiter   -> mismatch
        +30s
        bob       begins with body B             -> mismatch
        bob       begins with body B carefully   -> mismatch
        record    is in_progress
        ann       finishes 429                   -> freed
        bob       begins with body B             -> mismatch
        ann       begins                         -> run attempt 2
        ann       times out                      -> unsettled
        bob       begins with body B             -> mismatch
        ann       finishes 201                   -> stored
        bob       begins with body B             -> mismatch
        ",
    );
}

#[test]
fn a_row_of_another_tenant_is_never_this_clients() {
    story(
        "
        ann   begins                   -> run
        eve   begins as tenant rival   -> mismatch
        ann   finishes 201             -> stored
        eve   begins as tenant rival   -> mismatch
        ",
    );
}

// Invariant 4, and the protocol on forgetting.

#[test]
fn only_completed_or_expired_records_can_be_forgotten() {
    story(
        "
        operator  forgets       -> ignored
        ann       begins        -> run
        operator  forgets       -> ignored
        ann       times out     -> unsettled
        operator  forgets       -> ignored
        ann       finishes 429  -> freed
        operator  forgets       -> ignored
        ann       begins        -> run attempt 2
        ann       finishes 201  -> stored
        operator  forgets       -> forgotten
        record    has history operator
        reaper    purges        -> purged
        bob       begins        -> run
        ",
    );
    story(
        "
        policy    answer=async
        ann       begins async  -> accepted
        operator  forgets       -> ignored
        ",
    );
    story(
        "
        policy    retention=1h tombstone=1h after_expiry=refuse
        ann       begins        -> run
        ann       finishes 429  -> freed
        +1h
        ann       begins        -> expired
        operator  forgets       -> forgotten
        ann       begins        -> run
        record    has generation 2
        ",
    );
}

// Invariant 11: a record keeps its policy.

#[test]
fn a_later_configuration_governs_later_records_only() {
    story(
        "
        policy  on_lapse=unknown retention=2h
        ann     begins                  -> run
        policy  on_lapse=retry retention=1h lease=10s
        +20s
        bob     begins                  -> wait
        +10s
        bob     begins                  -> unknown
        ann     finishes 201            -> stored
        record  expires in 2h
        +2h
        bob     begins                  -> run
        record  is due in 10s
        +10s
        cat     begins                  -> run attempt 2
        ",
    );
    story(
        "
        policy  on_server_error=store
        ann     begins        -> run
        ann     finishes 429  -> freed
        policy  on_server_error=retry
        ann     begins        -> run attempt 2
        ann     finishes 500  -> stored
        ",
    );
}

// Protocol 1 and 2: lost replies.

#[test]
fn a_write_whose_reply_was_lost_is_recognised_when_sent_again() {
    story(
        "
        ann     loses the reply: begins        -> lost
        bob     begins                         -> wait
        ann     sends it again                 -> run
        ann     loses the reply: finishes 201  -> lost
        bob     begins                         -> replay 201
        ann     sends it again                 -> stored
        record  has attempt 1
        ",
    );
}

#[test]
fn a_resent_write_after_another_write_is_a_lost_race() {
    story(
        "
        policy   on_lapse=retry
        ann      loses the reply: begins  -> lost
        +30s
        bob      begins                   -> run attempt 2
        ann      sends it again           -> refused
        ann      begins                   -> wait
        ",
    );
}

#[test]
fn a_begin_that_was_given_up_loses_even_if_it_comes_late() {
    story(
        "
        ann      decides: begins          -> run
        ann      gave up                  -> freed
        record   is retryable
        record   has no fingerprint
        ann      commits what it decided  -> refused
        bob      begins with body B       -> run
        bob      finishes 201             -> stored
        ",
    );
}

#[test]
fn giving_up_a_begin_keeps_a_tombstone() {
    story(
        "
        policy  retention=1h tombstone=1h after_expiry=refuse
        ann     begins        -> run
        ann     finishes 429  -> freed
        +1h
        ann     begins        -> expired
        ann     gave up       -> freed
        ann     begins        -> expired
        +1h
        ann     begins        -> run
        ",
    );
}

#[test]
fn a_committed_begin_that_was_given_up_is_released() {
    story(
        "
        ann      loses the reply: begins  -> lost
        bob      begins                   -> wait
        ann      gave up                  -> freed
        bob      begins                   -> run attempt 2
        ann      sends it again           -> refused
        ",
    );
}

#[test]
fn a_release_that_loses_to_the_late_begin_releases_it() {
    story(
        "
        ann      decides: begins          -> run
        ann      decides: gave up         -> freed
        ann      commits what it decided  -> run
        ann      commits what it decided  -> refused
        ann      gave up                  -> freed
        record   is retryable
        ",
    );
    story(
        "
        ann      loses the reply: begins  -> lost
        ann      gave up                  -> freed
        record   is retryable
        ann      gave up                  -> freed
        record   is retryable
        ",
    );
}

#[test]
fn a_second_attempt_that_was_given_up_loses_too() {
    story(
        "
        ann      begins                   -> run
        ann      finishes 429             -> freed
        bob      decides: begins          -> run attempt 2
        bob      gave up                  -> freed
        bob      commits what it decided  -> refused
        record   is retryable
        ann      begins                   -> run attempt 2
        ",
    );
}

#[test]
fn an_abandoned_takeover_loses_to_the_returning_holder() {
    story(
        "
        policy lease=30s on_lapse=retry
        ann      begins                   -> run
        +31s
        bob      decides: begins          -> run attempt 2
        bob      gave up                  -> freed
        bob      commits what it decided  -> refused
        record   is in_progress
        ann      finishes 201             -> stored
        cat      begins                   -> replay 201
        ",
    );
}

#[test]
fn a_truncated_server_error_is_always_unknown() {
    for rules in ["on_server_error=unknown", "on_server_error=retry", "on_server_error=store"] {
        for status in [500, 501, 503] {
            story(&format!(
                "
                policy {rules}
                ann  begins                          -> run
                ann  finishes {status} not retained  -> unsettled
                bob  begins                          -> unknown
                "
            ));
        }
    }
}

#[test]
fn giving_up_leaves_records_of_other_requests_alone() {
    story(
        "
        ann      decides: begins  -> run
        bob      begins           -> run
        ann      gave up          -> ignored
        bob      finishes 201     -> stored
        ann      gave up          -> ignored
        ann      begins           -> replay 201
        ",
    );
}

#[test]
fn a_begin_that_was_given_up_frees_its_key_even_after_the_lapse() {
    story(
        "
        ann      loses the reply: begins  -> lost
        +30s                                 (the outage outlasts the lease)
        sweeper  sweeps                   -> settled
        record   is unknown, dead letter
        ann      gave up                  -> freed
        bob      begins                   -> run attempt 2
        ",
    );
    story(
        "
        ann      begins                   -> run
        ann      times out                -> unsettled
        bob      begins                   -> unknown
        bob      gave up                  -> ignored
        record   is unknown, dead letter
        ",
    );
}

#[test]
fn an_abandoned_begin_on_an_expired_record_loses() {
    story(
        "
        policy   retention=1h
        ann      begins                   -> run
        ann      finishes 201             -> stored
        +1h
        bob      decides: begins          -> run
        bob      gave up                  -> freed
        bob      commits what it decided  -> refused
        cat      begins with body B       -> run
        ",
    );
    story(
        "
        policy   retention=1h tombstone=1h after_expiry=refuse
        ann      begins                   -> run
        ann      finishes 201             -> stored
        +1h
        bob      begins                   -> expired
        bob      gave up                  -> ignored
        bob      begins                   -> expired
        ",
    );
}

#[test]
fn the_placeholder_of_a_given_up_begin_is_a_new_generation() {
    story(
        "
        policy   retention=1h
        ann      loses the reply: begins  -> lost
        ann      gave up                  -> freed
        +1h
        ann      gave up                  -> freed
        record   has attempt 0
        record   has generation 2
        ",
    );
}

// Protocol 3: waiters.

#[test]
fn a_waiter_never_starts_an_attempt() {
    story(
        "
        policy   on_lapse=retry retention=1h
        wes      begins as waiter  -> free
        ann      begins            -> run
        wes      begins as waiter  -> wait
        ann      finishes 429      -> freed
        wes      begins as waiter  -> free
        record   is retryable
        ann      begins            -> run attempt 2
        +30s
        wes      begins as waiter  -> free
        ann      finishes 201      -> stored
        wes      begins as waiter  -> replay 201
        +1h
        wes      begins as waiter  -> free
        record   has attempt 2
        ",
    );
}

#[test]
fn a_waiter_may_notice_a_lapse_first() {
    story(
        "
        ann      begins            -> run
        +30s
        wes      begins as waiter  -> unknown
        record   is unknown, dead letter
        ",
    );
    story(
        "
        policy   on_lapse=fail
        ann      begins            -> run
        +30s
        wes      begins as waiter  -> replay 500
        ",
    );
}

// Protocol 5: phases.

#[test]
fn the_recovery_point_moves_forward_by_one_and_never_back() {
    story(
        "
        ann     begins               -> run
        ann     commits `point 2`    -> superseded
        ann     commits `reserved`   -> advanced
        record  has point 1
        ann     commits `reserved`   -> superseded
        ann     commits `charged`    -> advanced
        ann     commits `point 1`    -> superseded
        ann     commits `point 4`    -> superseded
        record  has point 2
        ann     finishes 201         -> stored
        ann     commits `shipped`    -> superseded
        ",
    );
}

#[test]
fn a_committed_phase_renews_the_lease() {
    story(
        "
        ann     begins              -> run
        +20s
        ann     commits `charged`   -> advanced
        record  is due in 30s
        ",
    );
}

#[test]
fn a_phase_of_a_lost_lease_is_refused() {
    story(
        "
        policy  on_lapse=resume
        ann     begins                      -> run
        ann     decides: commits `charged`  -> advanced
        +30s
        bob     begins                      -> run attempt 2
        ann     commits what it decided     -> refused
        ann     commits `charged`           -> superseded
        record  has point 0
        bob     commits `charged`           -> advanced
        ",
    );
}

#[test]
fn a_released_request_continues_after_its_phases() {
    story(
        "
        ann     begins              -> run
        ann     commits `charged`   -> advanced
        ann     finishes 429        -> freed
        ann     begins              -> resume after `charged`
        ",
    );
}

// Protocol 6: time.

#[test]
fn no_lapsed_record_runs_again_after_a_clock_jump() {
    for rule in ["retry", "resume"] {
        story(&format!(
            "
            policy  on_lapse={rule}
            ann     begins            -> run
            +30s
            bob     begins carefully  -> wait
            record  is in_progress
            ann     finishes 201      -> stored
            bob     begins carefully  -> replay 201
            ",
        ));
    }
}

#[test]
fn after_the_clock_jumped_no_lapse_is_released_to_run_again() {
    story(
        "
        policy  answer=async on_lapse=retry
        ann     begins async            -> accepted
        wim     claims                  -> run
        +30s
        ann     begins async carefully  -> wait
        record  is in_progress
        wim     finishes 201            -> stored
        ",
    );
}

#[test]
fn a_waiter_releases_no_lapse_to_run_again() {
    story(
        "
        policy  on_lapse=retry
        ann     begins            -> run
        +30s
        wes     begins as waiter  -> free
        record  is in_progress
        bob     begins            -> run attempt 2
        ",
    );
    story(
        "
        policy  answer=async on_lapse=retry
        ann     begins async      -> accepted
        wim     claims            -> run
        +30s
        wes     begins as waiter  -> wait
        record  is in_progress
        ",
    );
}

#[test]
fn a_careful_request_runs_absent_and_retryable_records() {
    story(
        "
        ann     begins carefully  -> run
        ann     finishes 429      -> freed
        ann     begins carefully  -> run attempt 2
        ",
    );
}

#[test]
fn a_lease_longer_than_its_length_is_seen_and_reset() {
    story(
        "
        ann     begins   -> run
        -1h
        bob     begins   -> wait, overlong
        ann     renews   -> renewed
        record  is due in 30s
        bob     begins   -> wait
        +30s
        bob     begins   -> unknown
        ",
    );
}

// The language itself.

#[test]
#[should_panic(expected = "expected: wait")]
fn a_story_with_a_wrong_outcome_fails() {
    story("ann  begins  -> wait");
}

#[test]
#[should_panic(expected = "unknown word `dances`")]
fn a_story_with_an_unknown_word_fails() {
    story("ann  dances  -> run");
}

#[test]
#[should_panic(expected = "expected: completed")]
fn a_story_that_is_wrong_about_the_record_fails() {
    story(
        "
        ann     begins
        record  is completed
        ",
    );
}

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
fn a_refusal_in_a_later_run_keeps_the_key_bound() {
    story(
        "
        policy   on_server_error=retry
        ann      begins             -> run
        ann      finishes 500       -> freed
        ann      begins             -> run attempt 2
        ann      finishes 403       -> freed
        bob      begins with body B -> mismatch
        ann      begins             -> run attempt 3
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
        eve      resumes carefully -> ignored
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
