//! Invariant 1: one live lease, and late writes are refused.

use ibid_testkit::story::story;

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
