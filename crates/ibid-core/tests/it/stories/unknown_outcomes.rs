//! The table: results that prove nothing, and the unknown outcomes that they leave.

use ibid_testkit::story::story;

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
