-- lock.sql: one node at a time makes the tables; the others wait and find them made.
select pg_advisory_xact_lock($1)
