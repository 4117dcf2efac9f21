//! The table: the responses that are stored, and the requests that get them.

use ibid_testkit::story::story;

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
