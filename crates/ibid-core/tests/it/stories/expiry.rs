//! The table: expiry. Invariant 4, and the protocol on forgetting.

use ibid_testkit::story::story;

#[test]
fn expiry_comes_before_every_comparison() {
    story(
        "
        policy  retention=1h
        ann     begins              -> run
        ann     finishes 201        -> stored
        record  expires in 1h
        +3599s
        ann     begins with body B  -> mismatch
        ann     begins              -> replay 201
        +1s
        bob     begins as waiter    -> free
        bob     begins with body B  -> run
        record  has generation 2
        ann     begins with body A  -> mismatch
        ",
    );
    story(
        "
        policy  retention=1h
        ann     begins              -> run
        ann     finishes 429        -> freed
        +1h
        bob     begins with body B  -> run
        record  has generation 2
        ",
    );
}

#[test]
fn retention_counts_from_completion_and_not_from_the_beginning() {
    story(
        "
        policy  retention=1h lease=59m max_run=2h
        ann     begins         -> run
        +50m
        ann     renews         -> renewed
        +50m
        record  never expires
        ann     finishes 201   -> stored
        record  expires in 1h
        +59m
        bob     begins         -> replay 201
        ",
    );
}

#[test]
fn a_retryable_record_counts_from_its_own_write() {
    story(
        "
        policy  retention=1h
        ann     begins              -> run
        ann     finishes 429        -> freed
        +50m
        ann     begins              -> run attempt 2
        ann     finishes 429        -> freed
        record  expires in 1h
        +50m
        ann     begins              -> run attempt 3
        ",
    );
}

#[test]
fn a_tombstone_refuses_an_expired_key() {
    story(
        "
        policy  retention=1h tombstone=1h after_expiry=refuse
        ann     begins              -> run
        ann     finishes 201        -> stored
        record  goes in 2h
        +1h
        ann     begins              -> expired
        ann     begins with body B  -> expired
        ann     begins as waiter    -> expired
        reaper  purges              -> ignored
        +1h
        bob     begins with body B  -> run
        ",
    );
}

#[test]
fn one_of_two_requests_reuses_an_expired_key() {
    story(
        "
        policy  retention=1h
        ann     begins                   -> run
        ann     finishes 201             -> stored
        +1h
        bob     decides: begins          -> run
        cat     decides: begins          -> run
        bob     commits what it decided  -> run
        cat     commits what it decided  -> refused
        cat     begins                   -> wait
        ",
    );
}

#[test]
fn open_records_never_expire() {
    story(
        "
        policy  retention=1h
        ann     begins         -> run
        record  never expires
        ann     times out      -> unsettled
        record  never expires
        +400d
        reaper  purges         -> ignored
        bob     begins         -> unknown, dead letter
        ",
    );
    story(
        "
        policy  retention=1h
        ann     begins async     -> accepted
        record  never expires
        wim     claims           -> run
        wim     owes the answer  -> owed
        record  never expires
        +400d
        reaper  purges           -> ignored
        ",
    );
}

#[test]
fn old_versions_fit_nothing_after_a_purge() {
    story(
        "
        policy  retention=1h on_lapse=retry
        ann     begins                   -> run
        bob     begins                   -> wait
        +30s
        bob     decides: begins          -> run attempt 2
        sweeper sweeps                   -> settled
        +1h
        reaper  purges                   -> purged
        record  is absent
        cat     begins                   -> run
        bob     commits what it decided  -> refused
        ann     renews                   -> lost
        record  has generation 2
        ",
    );
}

#[test]
fn only_completed_or_expired_records_can_be_forgotten() {
    story(
        "
        operator  forgets       -> ignored
        ann       begins        -> run
        operator  forgets       -> ignored
        ann       times out     -> unsettled
        operator  forgets       -> ignored
        ann       finishes 429  -> freed
        operator  forgets       -> ignored
        ann       begins        -> run attempt 2
        ann       finishes 201  -> stored
        operator  forgets       -> forgotten
        record    has history operator
        reaper    purges        -> purged
        bob       begins        -> run
        ",
    );
    story(
        "
        policy    answer=async
        ann       begins async  -> accepted
        operator  forgets       -> ignored
        ",
    );
    story(
        "
        policy    retention=1h tombstone=1h after_expiry=refuse
        ann       begins        -> run
        ann       finishes 429  -> freed
        +1h
        ann       begins        -> expired
        operator  forgets       -> forgotten
        ann       begins        -> run
        record    has generation 2
        ",
    );
}
