//! Protocol 1 and 2: lost replies.

use ibid_testkit::story::story;

#[test]
fn a_write_whose_reply_was_lost_is_recognised_when_sent_again() {
    story(
        "
        ann     loses the reply: begins        -> lost
        bob     begins                         -> wait
        ann     sends it again                 -> run
        ann     loses the reply: finishes 201  -> lost
        bob     begins                         -> replay 201
        ann     sends it again                 -> stored
        record  has attempt 1
        ",
    );
}

#[test]
fn a_resent_write_after_another_write_is_a_lost_race() {
    story(
        "
        policy   on_lapse=retry
        ann      loses the reply: begins  -> lost
        +30s
        bob      begins                   -> run attempt 2
        ann      sends it again           -> refused
        ann      begins                   -> wait
        ",
    );
}

#[test]
fn a_begin_that_was_given_up_loses_even_if_it_comes_late() {
    story(
        "
        ann      decides: begins          -> run
        ann      gave up                  -> freed
        record   is retryable
        record   has no fingerprint
        ann      commits what it decided  -> refused
        bob      begins with body B       -> run
        bob      finishes 201             -> stored
        ",
    );
}

#[test]
fn giving_up_a_begin_keeps_a_tombstone() {
    story(
        "
        policy  retention=1h tombstone=1h after_expiry=refuse
        ann     begins        -> run
        ann     finishes 429  -> freed
        +1h
        ann     begins        -> expired
        ann     gave up       -> freed
        ann     begins        -> expired
        +1h
        ann     begins        -> run
        ",
    );
}

#[test]
fn a_committed_begin_that_was_given_up_is_released() {
    story(
        "
        ann      loses the reply: begins  -> lost
        bob      begins                   -> wait
        ann      gave up                  -> freed
        bob      begins                   -> run attempt 2
        ann      sends it again           -> refused
        ",
    );
}

#[test]
fn a_release_that_loses_to_the_late_begin_releases_it() {
    story(
        "
        ann      decides: begins          -> run
        ann      decides: gave up         -> freed
        ann      commits what it decided  -> run
        ann      commits what it decided  -> refused
        ann      gave up                  -> freed
        record   is retryable
        ",
    );
    story(
        "
        ann      loses the reply: begins  -> lost
        ann      gave up                  -> freed
        record   is retryable
        ann      gave up                  -> freed
        record   is retryable
        ",
    );
}

#[test]
fn a_second_attempt_that_was_given_up_loses_too() {
    story(
        "
        ann      begins                   -> run
        ann      finishes 429             -> freed
        bob      decides: begins          -> run attempt 2
        bob      gave up                  -> freed
        bob      commits what it decided  -> refused
        record   is retryable
        ann      begins                   -> run attempt 2
        ",
    );
}

#[test]
fn an_abandoned_takeover_loses_to_the_returning_holder() {
    story(
        "
        policy lease=30s on_lapse=retry
        ann      begins                   -> run
        +31s
        bob      decides: begins          -> run attempt 2
        bob      gave up                  -> freed
        bob      commits what it decided  -> refused
        record   is in_progress
        ann      finishes 201             -> stored
        cat      begins                   -> replay 201
        ",
    );
}

#[test]
fn giving_up_leaves_records_of_other_requests_alone() {
    story(
        "
        ann      decides: begins  -> run
        bob      begins           -> run
        ann      gave up          -> ignored
        bob      finishes 201     -> stored
        ann      gave up          -> ignored
        ann      begins           -> replay 201
        ",
    );
}

#[test]
fn a_begin_that_was_given_up_frees_its_key_even_after_the_lapse() {
    story(
        "
        ann      loses the reply: begins  -> lost
        +30s                                 (the outage outlasts the lease)
        sweeper  sweeps                   -> settled
        record   is unknown, dead letter
        ann      gave up                  -> freed
        bob      begins                   -> run attempt 2
        ",
    );
    story(
        "
        ann      begins                   -> run
        ann      times out                -> unsettled
        bob      begins                   -> unknown
        bob      gave up                  -> ignored
        record   is unknown, dead letter
        ",
    );
}

#[test]
fn an_abandoned_begin_on_an_expired_record_loses() {
    story(
        "
        policy   retention=1h
        ann      begins                   -> run
        ann      finishes 201             -> stored
        +1h
        bob      decides: begins          -> run
        bob      gave up                  -> freed
        bob      commits what it decided  -> refused
        cat      begins with body B       -> run
        ",
    );
    story(
        "
        policy   retention=1h tombstone=1h after_expiry=refuse
        ann      begins                   -> run
        ann      finishes 201             -> stored
        +1h
        bob      begins                   -> expired
        bob      gave up                  -> ignored
        bob      begins                   -> expired
        ",
    );
}

#[test]
fn the_placeholder_of_a_given_up_begin_is_a_new_generation() {
    story(
        "
        policy   retention=1h
        ann      loses the reply: begins  -> lost
        ann      gave up                  -> freed
        +1h
        ann      gave up                  -> freed
        record   has attempt 0
        record   has generation 2
        ",
    );
}
