//! Protocol 6: time. After the store's clock jumped, requests and sweepers are careful.

use ibid_testkit::story::story;

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
fn after_a_clock_jump_the_sweeper_resumes_nothing() {
    for (rule, resumes, sweeps) in [
        ("retry", "ignored", "wait"),
        ("resume", "wait", "wait"),
        ("unknown", "ignored", "settled"),
        ("fail", "ignored", "settled"),
    ] {
        story(&format!(
            "
            policy   on_lapse={rule}
            ann      begins             -> run
            +30s
            sweeper  resumes carefully  -> {resumes}
            sweeper  sweeps carefully   -> {sweeps}
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
