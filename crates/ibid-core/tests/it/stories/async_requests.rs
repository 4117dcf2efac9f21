//! The table: requests that are accepted, stored, and run later by a worker.

use ibid_testkit::story::story;

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
