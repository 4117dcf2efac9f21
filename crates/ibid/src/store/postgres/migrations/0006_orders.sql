-- The orders in which upkeep comes by are set when a row is begun, and its finish leaves them alone: so a finish touches no
-- index and stays within its page. What upkeep finds there is a reason to look, not a verdict.
alter table ibid_record
  add column first_due int8,        -- the end of the lease that it was begun with; never changed
  add column reap_at int8,          -- the reaper has nothing to do with it before this
  -- `state` and `due_at` again, for those whose first lease is over (walk.sql) and those that got another instant. The
  -- state is here because a state that is indexed could not change within a page.
  add column watch_state int2,
  add column watch_at int8;

drop index ibid_record_due;
drop index ibid_record_reap;
create index ibid_record_first on ibid_record (first_due);
create index ibid_record_due on ibid_record (watch_state, watch_at) where watch_at is not null;
create index ibid_record_reap on ibid_record (reap_at);
-- Behind the indexes: before them it would keep plans from using them while anybody's older transaction lives.
update ibid_record set watch_state = state, watch_at = due_at where due_at is not null;

-- Room for the second version of every row: what is begun together is finished together.
alter table ibid_record set (fillfactor = 50);

-- How far first leases were looked through, in one row.
-- It has a key because a table without one can't be updated where it is published.
create table ibid_walk (
  place int2 not null,
  at int8 not null,
  constraint ibid_walk_pkey primary key (place)
);
insert into ibid_walk (place, at) values (1, 0);

-- Records whose first lease was over while somebody held them: to be looked at again.
create table ibid_late (
  id bytea not null,
  constraint ibid_late_pkey primary key (id)
);

-- Rows as the hot path sends them: what a fresh record and its finish do not share with all others. Those of step 4 stay, for
-- processes that still send them; what these leave out of the orders is put there by adopt.sql.
create type ibid_fresh_row as (
  id bytea, nonce int8, lease_us int8, keep_us int8, policy int8, state int2, flags int2,
  fingerprint bytea, tenant text, method text, path text, key text, note bytea
);
create type ibid_finish_row as (
  place tid, id bytea, was_nonce int8, nonce int8, expires_us int8, purge_us int8, state int2, flags int2, note bytea,
  kind int4, data bytea             -- what is kept beside it, if anything
);
