//! Protocol 5: phases.

use ibid_testkit::story::story;

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
