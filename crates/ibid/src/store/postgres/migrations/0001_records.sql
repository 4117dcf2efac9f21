-- Thin rows, bodies apart. Instants are microseconds since the epoch; nonces are unsigned 64-bit numbers kept
-- with the same bits; codes are those of ibid-core. No statement of ibid names a schema: the tables are made in
-- the first one of the search path.

-- Fixed widths first, so that alignment costs nothing and offsets are known; what a finish writes stands together, so that
-- its log record is short.
--
-- The reaper's order is set when a row is begun (in a caller's transaction: when it is finished), and a finish that finds it
-- set leaves it alone: so it touches no index and stays within its page. What upkeep finds in an order is a reason to look, not a verdict.
create table ibid_record (
  reap_at int8,                     -- the reaper has nothing to do with it before this
  birth int8 not null,              -- the nonce of the insert: with `created_at` one generation
  owner int8 not null,              -- the nonce of the attempt that runs or ran last
  created_at int8 not null,
  ran_at int8,
  lease_us int8 not null,           -- how far a renewal moves due_at
  policy int8 not null,             -- in ibid_policy
  attempt int8 not null,
  nonce int8 not null,              -- with `count`: the version
  count int8 not null,
  point int4 not null,
  state int2 not null,
  flags int2 not null,
  completed_at int8,
  due_at int8,                      -- lease end, next reconciliation or pending deadline
  expires_at int8,                  -- replay ends
  purge_at int8,                    -- the row goes
  -- `state` and `due_at` again, but of none in its first lease: those are in no order but the reaper's until walk.sql has come
  -- by. The state is here because a state that is indexed could not change within a page.
  watch_at int8,
  watch_state int2,
  bare boolean not null default false,  -- stripped: a tombstone
  id bytea not null,
  fingerprint bytea,
  tenant text not null,
  method text not null,
  path text not null,
  key text not null,
  note bytea not null,
  constraint ibid_record_pkey primary key (id)
);
create index ibid_record_due on ibid_record (watch_state, watch_at) where watch_at is not null;
-- With the policy, so that walk.sql passes over records of others without reading them.
create index ibid_record_reap on ibid_record (reap_at, policy);

-- Filled by less than half: room for the second version of every row, which is larger by two instants, for what is begun
-- together is finished together. What the reaper removes is to be used again before the tables grow: at a fiftieth of dead
-- rows instead of a fifth.
alter table ibid_record set (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.02);

-- What is kept beside a record, in the order of time: the answers of one second stand side by side, where their records, whose
-- ids are digests, are strewn over the whole of their index. Answers are small, or compressed by whoever sent them: to compress
-- them again would cost every finish more than it saves.
create table ibid_body (
  born_at int8 not null,            -- the record's `created_at`
  birth int8 not null,              -- the generation that wrote it; no other may see it
  kind int4 not null,
  data bytea not null,
  constraint ibid_body_pkey primary key (born_at, birth, kind)
);
alter table ibid_body alter column data set storage external;
alter table ibid_body set (autovacuum_vacuum_scale_factor = 0.02);

-- How far the first leases under a policy were looked through.
create table ibid_walk (
  policy int8 not null,
  at int8 not null,
  constraint ibid_walk_pkey primary key (policy)
);

-- Records whose first lease was over while somebody held them: to be looked at again.
create table ibid_late (
  id bytea not null,
  constraint ibid_late_pkey primary key (id)
);

-- The rules that records were begun with, each set once, named by the first 8 bytes of its SHA-256: the number
-- depends neither on who came first nor on a transaction that was rolled back.
create table ibid_policy (
  digest int8 not null,
  put_at int8 not null,             -- before any record names it
  ahead_us int8,                    -- retention less lease: from the end of a first lease to the reaper's instant
  data bytea not null,
  constraint ibid_policy_pkey primary key (digest)
);

-- What a person will ask about. It outlives its record.
create table ibid_event (
  seq int8 generated always as identity,
  at int8 not null,
  what int2 not null,
  id bytea not null,
  detail text not null,
  constraint ibid_event_pkey primary key (seq)
);
create index ibid_event_id on ibid_event (id, seq);

-- Small values that every process on this database must agree on.
create table ibid_meta (
  name text not null,
  value bytea not null,
  constraint ibid_meta_pkey primary key (name)
);
