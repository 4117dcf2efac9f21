-- Records and what belongs to them. Instants are microseconds since the epoch; nonces are unsigned 64-bit numbers
-- with the same bits; codes are those of ibid-core. A column that has its first value is null, because a null takes
-- no room: `owner`, `attempt`, `point`, `note`.
--
-- Instants of a record:
--
-- | instant      | set by                                   | to                                                     |
-- | ------------ | ---------------------------------------- | ------------------------------------------------------ |
-- | created_at   | the insert; a new generation             | now                                                    |
-- | ran_at       | each begin of an attempt                 | now                                                    |
-- | completed_at | the write that makes the response final  | now                                                    |
-- | due_at       | every write; a renewal                   | end of the lease, next lookup or next run; null: none  |
-- | expires_at   | every write                              | end of replay; null while the record is open           |
-- | purge_at     | every write                              | when the row may be deleted; null: not by itself       |
-- | watch_at     | every write but a first insert; renewal; | `due_at`, or the end of time for an open record that   |
-- |              | the ordering of new rows                 | is never due: its place in `ibid_record_open`          |
-- | reap_at      | every write but an insert and the first  | the earlier of expires_at and purge_at, or purge_at of |
-- |              | finish; the reaper                       | a tombstone: its place in `ibid_record_reap`           |
--
-- New rows are in no order but that of their begin, so a begin enters one index (the id) and its finish none. Every few
-- seconds the writer orders the rows after `ibid_ordered.up_to`: those that still run get their `watch_at`, and the
-- others are covered by a range in `ibid_reap_range`.
-- Invariant: of rows up to `up_to`, each that has a due instant has `watch_at`, and each that has a purge instant has
-- `reap_at` or is in a range whose `at` is no later than its own instant.

-- A rowid table: rows append, so the finish of a record dirties the page that its begin dirtied a moment before. Keyed by
-- its random id instead, every write would dirty another page.
create table ibid_record (
  row integer primary key,          -- set by the insert; rows are in the order of their begin
  id blob not null unique,          -- set by the insert: digest of tenant, operation and key, 16 bytes
  count integer not null,           -- set by every write: number of writes; with `nonce` it is the version
  nonce integer not null,           -- set by every write: drawn by the writer before it sends
  birth integer not null,           -- set by the insert and a new generation: its nonce
  state integer not null,           -- set by every write: 1 pending, 2 in_progress, 3 completed, 4 retryable, 5 unknown
  flags integer not null,           -- set by every write: 1 dead letter, 2 owed, 4 asynchronous, 8 not retained; 128 by the reaper: a tombstone
  policy integer not null,          -- set by every write: ibid_policy.id
  created_at integer not null,      -- set by the insert and a new generation: instant of the first request
  ran_at integer,                   -- set by each begin of an attempt
  completed_at integer,             -- set by the write that makes the response final
  due_at integer,                   -- set by every write and renewal: end of the lease, next lookup or next run
  expires_at integer,               -- set by every write: replay ends
  purge_at integer,                 -- set by every write: the row may be deleted
  watch_at integer,                 -- set by every write but a first insert, by renewal and ordering: see above
  reap_at integer,                  -- set by every write but an insert and the first finish, and by the reaper: see above
  owner integer,                    -- set by each begin of an attempt: its nonce; null if it is `birth`
  attempt integer,                  -- set by each begin of an attempt: number of attempts; null for 1
  point integer,                    -- set by each phase: number of the last committed one; null for 0
  fingerprint blob,                 -- set by every write: secret id and digest of the request; null after a 401 or 403
  tenant text not null,             -- set by every write; emptied by the reaper in a tombstone
  method text not null,             -- set by every write; emptied by the reaper in a tombstone
  path text not null,               -- set by every write; emptied by the reaper in a tombstone
  key text not null,                -- set by every write; emptied by the reaper in a tombstone
  note text,                        -- set by every write: small details as JSON; null if all have their defaults
  status integer,                   -- set by the write that stores a response or learns its status
  lines blob,                       -- set with a response: header lines, then an empty line and trailers; null: no response
  sealed_by text,                   -- id of the key that `body` is encrypted under; null: it is plain. No version writes it yet
  body blob                         -- set with a response of at most 1024 bytes; a larger one is in ibid_body
) strict;

-- Open records by state and due instant, and those that are never due at the end. Completed ones are in no index but the id's.
create index ibid_record_open on ibid_record (state, watch_at) where watch_at is not null;

-- Records that the reaper does not find by a range: written again after they were ordered, or held past their time.
create index ibid_record_reap on ibid_record (reap_at) where reap_at is not null;

-- Records that an operator must look at.
create index ibid_record_dead_letter on ibid_record (row) where flags & 1 = 1;

-- The last row that was ordered, and the number of rows up to it. One row; lowered when the reaper deletes records.
create table ibid_ordered (
  one integer primary key check (one = 1), -- set by the schema: 1, so that there is one row
  up_to integer not null,           -- set by the ordering of new rows, and by the reaper: ibid_record.row
  rows integer not null             -- set by the ordering of new rows, and by the reaper: records up to there
) strict;
insert into ibid_ordered (one, up_to, rows) values (1, 0, 0);

-- Ranges of neighbouring records that the reaper visits: one entry per some thousand records instead of an index entry each.
create table ibid_reap_range (
  first integer primary key,        -- set by the ordering of new rows: first ibid_record.row
  last integer not null,            -- set by the ordering of new rows: last ibid_record.row
  at integer not null               -- set by the ordering and by the reaper after each visit: earliest reap instant in it
) strict;
create index ibid_reap_range_at on ibid_reap_range (at);

-- Bodies apart from their record: large responses, stored requests, results of phases. slot = ibid_record.row * 131072 + the code
-- of its kind (at most 16 + 65535). One number instead of a composite key makes this a rowid table, too, so that it appends.
create table ibid_body (
  slot integer primary key,         -- set by the write that stores the body
  birth integer not null,           -- set by the write that stores the body: the generation; no other may see it
  data blob not null                -- set by the write that stores the body
) strict;

-- Policies that records were begun with, each once. Numbers are never used again, because readers keep policies by number.
create table ibid_policy (
  id integer primary key autoincrement, -- set when the policy is first used
  data blob not null unique,        -- set when the policy is first used: CBOR
  lease_us integer not null,        -- set when the policy is first used: how far a renewal moves due_at
  life_us integer not null,         -- set when the policy is first used: longest time from a write to the row's purge
  seen_at integer not null          -- set when the policy is first used, and at most hourly when a write names it
) strict;

-- The history of records, for operators. It outlives its record.
create table ibid_event (
  seq integer primary key,          -- set by the write; lines are in the order of time
  id blob not null,                 -- set by the write: ibid_record.id
  at integer not null,              -- set by the write: now
  what text not null,               -- set by the write: name of the kind, as `ibid keys show` prints it
  detail text not null              -- set by the write: text for an operator
) strict;
create index ibid_event_id on ibid_event (id);

-- Small values that every process on this file must agree on.
create table ibid_meta (
  name text primary key,            -- set by the first writer
  value blob not null               -- set by the first writer, replaced by compare-and-set
) strict, without rowid;
