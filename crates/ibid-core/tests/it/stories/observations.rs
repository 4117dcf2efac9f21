//! The table: an unknown outcome is settled by what a reconciler, a webhook or an operator finds.

use ibid_testkit::story::story;

#[test]
fn any_observer_that_finds_it_executed_completes_it() {
    for finder in ["reconciler  finds", "webhook  hears", "operator  resolves"] {
        story(&format!(
            "
            policy  settle=60s
            ann     begins                  -> run
            ann     times out               -> unsettled
            +10s
            {finder}  executed 402          -> settled
            record  is completed
            record  expires in 24h
            bob     begins                  -> replay 402
            ",
        ));
    }
}

#[test]
fn an_operator_is_believed_at_once_that_nothing_was_executed() {
    story(
        "
        ann       begins                 -> run
        ann       times out              -> unsettled
        operator  resolves not executed  -> settled
        record    is retryable
        bob       begins                 -> run attempt 2
        ",
    );
}

#[test]
fn a_webhook_not_executed_counts_only_after_the_attempts_end() {
    story(
        "
        policy   upstream_timeout=30s linger=90s
        ann      begins                           -> run
        +30s
        ann      times out                        -> unsettled
        webhook  hears not executed               -> ignored
        +89s
        webhook  hears not executed               -> ignored
        bob      begins                           -> unknown
        +60s                                         (the event took a minute to arrive)
        webhook  hears not executed as of 60s ago -> ignored
        record   is unknown, dead letter
        webhook  hears not executed as of 59s ago -> settled
        record   is retryable
        bob      begins                           -> run attempt 2
        ",
    );
}

#[test]
fn not_executed_during_a_delivery_lets_no_retry_run() {
    story(
        "
        ann      begins                           -> run
        +2s                                          (the provider drops a first intent, ann's call continues)
        ann      times out                        -> unsettled
        webhook  hears not executed as of 1s ago  -> ignored
        bob      begins                           -> unknown
        ann      finishes 201                     -> stored
        bob      begins                           -> replay 201
        ",
    );
}

#[test]
fn a_reconciler_must_see_not_executed_twice_settle_apart() {
    story(
        "
        policy      settle=60s
        ann         begins              -> run
        ann         times out           -> unsettled
        +60s
        reconciler  finds not executed  -> later
        record      is unknown
        record      is due in 60s
        +59s
        reconciler  finds not executed  -> ignored
        +1s
        reconciler  finds not executed  -> settled
        record      is retryable
        record      has history reconcile try
        ",
    );
}

#[test]
fn not_executed_is_ignored_until_the_attempts_linger_ends() {
    story(
        "
        policy      settle=60s upstream_timeout=30s linger=90s
        ann         begins              -> run
        ann         times out           -> unsettled
        record      is due in 120s
        +60s
        reconciler  finds not executed  -> ignored
        +60s
        reconciler  finds not executed  -> later
        record      is due in 60s
        +60s
        reconciler  finds not executed  -> settled
        ",
    );
}

#[test]
fn executed_after_a_first_not_there_completes_the_record() {
    story(
        "
        policy      settle=60s
        ann         begins              -> run
        ann         times out           -> unsettled
        +60s
        reconciler  finds not executed  -> later
        +60s
        reconciler  finds executed 201  -> settled
        bob         begins              -> replay 201
        ",
    );
}

#[test]
fn concurrent_reconcilers_use_up_one_try() {
    story(
        "
        policy  settle=60s tries=2
        ann     begins                           -> run
        ann     times out                        -> unsettled
        +60s
        rita    finds nothing                    -> later
        rob     finds nothing                    -> ignored
        rob     finds not executed as of 1s ago  -> ignored
        record  is unknown
        record  is due in 2s
        bob     begins                           -> unknown
        +2s
        rob     finds nothing                    -> later
        record  is unknown, dead letter
        rita    finds nothing                    -> ignored
        ",
    );
}

#[test]
fn two_lookups_count_only_if_made_settle_apart() {
    story(
        "
        policy  settle=60s
        ann     begins                            -> run
        ann     times out                         -> unsettled
        +60s
        rita    finds not executed                -> later
        +60s                                         (rob looked when rita did, and is slow to say so)
        rob     finds not executed as of 60s ago  -> ignored
        record  is unknown
        rob     finds not executed                -> settled
        ",
    );
}

#[test]
fn a_lookup_without_a_result_discards_the_first_not_there() {
    story(
        "
        policy      settle=60s
        ann         begins              -> run
        ann         times out           -> unsettled
        +60s
        reconciler  finds not executed  -> later
        +60s
        reconciler  finds nothing       -> later
        +60s
        reconciler  finds not executed  -> later
        +60s
        reconciler  finds not executed  -> settled
        ",
    );
}

#[test]
fn after_the_last_lookup_it_is_a_dead_letter() {
    story(
        "
        policy      settle=60s tries=2
        ann         begins                 -> run
        ann         times out              -> unsettled
        +60s
        reconciler  finds nothing          -> later
        bob         begins                 -> unknown
        +60s
        reconciler  finds nothing          -> later
        record      is unknown, dead letter
        bob         begins                 -> unknown, dead letter
        operator    resolves not executed  -> settled
        bob         begins                 -> run attempt 2
        ",
    );
}

#[test]
fn poison_stays_a_dead_letter_while_the_reconciler_looks() {
    story(
        "
        policy      on_lapse=retry max_attempts=1 settle=60s
        ann         begins                  -> run
        +30s
        sweeper     sweeps                  -> settled
        record      is unknown, dead letter
        +60s
        reconciler  finds nothing           -> later
        record      is unknown, dead letter
        reconciler  finds executed 201      -> settled
        record      is completed
        ",
    );
}

#[test]
fn an_async_record_found_not_executed_waits_for_its_next_run() {
    story(
        "
        policy    answer=async
        ann       begins async           -> accepted
        wim       claims                 -> run
        wim       times out              -> unsettled
        operator  resolves not executed  -> settled
        record    is pending
        +2s
        wim       claims                 -> run attempt 2
        ",
    );
}

#[test]
fn the_next_attempt_starts_its_lookups_from_zero() {
    story(
        "
        policy      settle=60s
        ann         begins                 -> run
        ann         times out              -> unsettled
        +60s
        reconciler  finds not executed     -> later
        operator    resolves not executed  -> settled
        bob         begins                 -> run attempt 2
        bob         times out              -> unsettled
        +60s
        reconciler  finds not executed     -> later
        +60s
        reconciler  finds not executed     -> settled
        ",
    );
}

#[test]
fn evidence_from_before_the_attempt_never_settles_it() {
    for finder in ["reconciler  finds", "webhook  hears", "operator  resolves"] {
        story(&format!(
            "
            policy  settle=60s
            +1h
            ann     begins                        -> run
            +10s
            ann     times out                     -> unsettled
            {finder}  executed 201 as of 11s ago  -> ignored
            {finder}  not executed as of 11s ago  -> ignored
            record  is unknown
            {finder}  executed 201 as of 9s ago   -> settled
            ",
        ));
    }
}

#[test]
fn evidence_settles_only_unknown_records() {
    for finder in ["reconciler  finds", "webhook  hears", "operator  resolves"] {
        story(&format!(
            "
            policy  settle=60s
            {finder}  executed 201  -> ignored
            ann     begins          -> run
            {finder}  executed 201  -> ignored
            {finder}  not executed  -> ignored
            ann     finishes 429    -> freed
            {finder}  executed 201  -> ignored
            ann     begins          -> run attempt 2
            ann     finishes 201    -> stored
            {finder}  executed 402  -> ignored
            {finder}  not executed  -> ignored
            record  answers 201
            ",
        ));
    }
}

#[test]
fn a_late_response_and_a_reconciler_settle_once() {
    story(
        "
        policy      settle=60s
        ann         begins                        -> run
        ann         times out                     -> unsettled
        reconciler  decides: finds executed 200   -> settled
        ann         finishes 201                  -> stored
        reconciler  commits what it decided       -> refused
        reconciler  finds executed 200            -> ignored
        bob         begins                        -> replay 201
        ",
    );
}
