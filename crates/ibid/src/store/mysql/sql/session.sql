-- Settings of every session. Strict mode refuses values that do not fit instead of cutting them. The isolation level lets
-- batches insert without gap locks. A lock on a row is waited for one second, the least that MySQL allows, and a lock on a table,
-- which a change of its schema holds, for five: shorter than any wait for a reply. Times are UTC. A server may have other
-- defaults that break statements: updates that name no key refused, rows cut off, or transactions that only read.
set session sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', session innodb_lock_wait_timeout = 1, session lock_wait_timeout = 5,
    session time_zone = '+00:00', session autocommit = 1, session sql_safe_updates = 0, session sql_select_limit = 18446744073709551615;
set session transaction isolation level read committed, read write
