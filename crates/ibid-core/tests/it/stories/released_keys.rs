//! The table: reports that release the key, and the requests that may use it next.

use ibid_testkit::story::story;

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
