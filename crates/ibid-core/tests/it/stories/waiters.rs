//! Protocol 3: waiters.

use ibid_testkit::story::story;

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
