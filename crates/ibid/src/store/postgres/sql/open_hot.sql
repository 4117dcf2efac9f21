-- Opens a transaction around the statements of the hot path. Their plans are made once per connection, and these
-- settings make them the same whatever the tables held by then: every row is found through an index by its id. (A plan
-- made while a table was small would scan it as long as the connection lives.) All of it ends with the transaction. A hot
-- session has the settings from its start (`target.rs`); `ibid.settings` says that they are there.
begin isolation level read committed;
set local plan_cache_mode = force_generic_plan;
set local enable_seqscan = off;
set local enable_bitmapscan = off;
set local enable_tidscan = on;
set local enable_nestloop = on;
set local jit = off;
set local lock_timeout = '250ms';
set local ibid.settings = 'on'
