//! Invariant 11: a record keeps its policy.

use ibid_testkit::story::story;

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
