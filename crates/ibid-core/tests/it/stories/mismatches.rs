//! Invariant 3: the fingerprint. A key belongs to one request of one tenant.

use ibid_testkit::story::story;

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
