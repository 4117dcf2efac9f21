-- Opens a transaction around the statements of the hot path. Their plans are made once per connection, and these
-- settings make them the same whatever the tables held by then: every row is found through an index by its id. (A plan
-- made while a table was small would scan it for ever.) All of it ends with the transaction. A session of our own has
-- all of it from the start (`connect.rs`); `ibid.settings` says that it is there.
begin isolation level read committed;
set local plan_cache_mode = force_generic_plan;
set local enable_seqscan = off;
set local enable_bitmapscan = off;
set local enable_tidscan = on;
set local enable_nestloop = on;
set local jit = off;
set local lock_timeout = '250ms';
set local ibid.settings = 'on'
