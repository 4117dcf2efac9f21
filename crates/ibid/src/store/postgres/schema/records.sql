-- Records, their bodies, policies, history and settings.
--
-- Instants are microseconds since 1970 by the server's clock. Nonces are unsigned 64-bit numbers stored with the same bits,
-- and so is `count` with 32 bits. Codes are those of ibid-core. No statement of ibid names a schema: the tables are in the
-- first one of the search path.
--
-- The instants of a record, who sets each one, and when:
--
-- | instant      | set by                       | to                                                                |
-- | ------------ | ---------------------------- | ----------------------------------------------------------------- |
-- | created_at   | the first begin of a         | now; a later write of the same generation keeps it                |
-- |              | generation                   |                                                                   |
-- | ran_at       | each begin of an attempt     | now                                                               |
-- | completed_at | the finish                   | now                                                               |
-- | due_at       | begin, renewal               | end of the lease                                                  |
-- |              | a record that becomes        | next lookup, or next run by a worker; null if an operator must    |
-- |              | unknown, pending, retryable  | act or nothing has to happen                                      |
-- |              | the finish                   | null                                                              |
-- | expires_at   | the finish or release        | end of replay: now + retention                                    |
-- | purge_at     | the finish or release        | the row may be deleted: now + retention + tombstone               |
-- | reap_at      | the begin                    | the earliest end of replay: now + retention. A finish leaves it   |
-- |              |                              | alone, so it touches no index; a write that expires earlier moves |
-- |              |                              | it forward                                                        |
-- |              | the reaper                   | `expires_at` or `purge_at` of a row that it visited too early; in |
-- |              |                              | an hour if the row is not finished                                |
-- | watch_at     | every write but a first      | `due_at`, or the largest number if the state is pending,          |
-- |              | begin and its finish         | retryable or unknown and nothing is due                           |
-- |              | the lease scan, the reaper   | `due_at` of a record that is still in its first lease when that   |
-- |              |                              | has ended                                                         |
--
-- So `reap_at` and `watch_at` are reasons to look at a row, and never a verdict: upkeep compares the other instants.

-- Columns that never change in a finish come first, then those that a finish writes: the log of an update leaves out what
-- old and new row have in common at their start. Columns are null while they have their first value.
create table ibid_record (
  id uuid not null,                 -- set by the insert: first 16 bytes of the digest of tenant, operation and key
  birth int8 not null,              -- set by the insert of a generation: its nonce
  created_at int8 not null,         -- set by the insert of a generation: first request
  policy int8 not null,             -- set by every write: the policy's number in ibid_policy
  reap_at int8 not null,            -- set by the begin, moved by the reaper: nothing can be reaped before
  ran_at int8,                      -- set by each begin of an attempt: its start
  flags int2 not null,              -- set by every write: 1 dead letter, 2 owed, 4 asynchronous, 8 response not retained; 128 set by the reaper: tombstone
  tenant text not null,             -- set by the insert, blanked by the reaper in a tombstone
  method text not null,             -- set by the insert, blanked by the reaper in a tombstone
  path text not null,               -- set by the insert, blanked by the reaper in a tombstone
  key text not null,                -- set by the insert, blanked by the reaper in a tombstone
  fingerprint bytea,                -- set by the begin: digest of the request; null if no request holds the key
  nonce int8 not null,              -- set by every write: with count the version, which fences writers
  due_at int8,                      -- set by every write and by renewals: end of the lease, next lookup or next run
  completed_at int8,                -- set by the finish: the response became final
  expires_at int8,                  -- set by the finish or release: replay ends
  purge_at int8,                    -- set by the finish or release: the row may be deleted
  owner int8,                       -- set by each begin of an attempt: its nonce; null if it is the birth
  watch_at int8,                    -- set with watch_state: position in the order of due records
  count int4 not null,              -- set by every write: number of writes
  attempt int4,                     -- set by each begin of an attempt: number of attempts; null for 1
  point int4,                       -- set by each phase: number of the last committed phase; null for 0
  status int4,                      -- set by the finish: HTTP status, whether or not the response is stored
  state int2 not null,              -- set by every write: 1 pending, 2 in progress, 3 completed, 4 retryable, 5 unknown
  watch_state int2,                 -- set by writes that are not a first begin or its finish: the state again, as the order of due records needs it
  note text,                        -- set by every write: further details as JSON; null if all have their defaults
  sealed_by text,                   -- set by a version that encrypts: id of the key under which body is sealed; null today
  lines bytea,                      -- set by the finish: header lines of the response, `name: value` and a line feed each
  body bytea,                       -- set by the finish: body of the response; null if it is larger than 1,024 bytes and in ibid_body
  constraint ibid_record_pkey primary key (id)
);

-- Records by the instant at which upkeep must act. A first lease is not in it, so that begin and finish need not write it. The
-- id is last, because many records can have one instant, and a list has to continue between them.
create index ibid_record_due on ibid_record (watch_state, watch_at, id) where watch_at is not null;

-- Records in the order of the reaper. It has the policy, so that the lease scan of one policy skips others unread.
create index ibid_record_reap on ibid_record (reap_at, policy);

-- Dead letters. A finish does not change the flags, so this index costs it nothing.
create index ibid_record_dead on ibid_record (id) where flags & 1 <> 0;

-- Pages are filled to 28 %: a row that is begun takes about 230 bytes, and its finished version with a response of 300 bytes
-- about 620. Rows that are begun together are finished together, so the page needs room for both versions of each; then the
-- update stays in its page and touches no index (HOT). Vacuum runs at 2 % of dead rows instead of 20 %, so that rows which
-- the reaper removes are reused before the table grows.
alter table ibid_record set (fillfactor = 28, autovacuum_vacuum_scale_factor = 0.02);

-- Responses are small or compressed by their sender. To compress them again would cost each finish more than it saves.
alter table ibid_record alter column body set storage external;

-- Bodies that are stored apart from their record: requests, results of phases and large responses. The key begins with an
-- instant, so new rows are next to each other. A body has no id: it is found by its record's generation, and a write that
-- ends the generation deletes it.
create table ibid_body (
  born_at int8 not null,            -- set by the write that stores the body: the record's created_at
  birth int8 not null,              -- set by the write that stores the body: the record's birth
  kind int4 not null,               -- set by the write that stores the body: 1 response, 2 request, 16 + n result of phase n
  data bytea not null,              -- set by the write that stores the body
  constraint ibid_body_pkey primary key (born_at, birth, kind)
);
alter table ibid_body alter column data set storage external;
alter table ibid_body set (autovacuum_vacuum_scale_factor = 0.02);

-- Policies that records were begun with. The number is the first 8 bytes of the SHA-256 of the data, so it depends neither
-- on the order of arrival nor on a transaction that rolled back.
create table ibid_policy (
  digest int8 not null,             -- set by the first process that uses the policy: its number
  put_at int8 not null,             -- set by the first process that uses the policy, before any record names it
  seen_at int8 not null,            -- set by each process that uses the policy, at most once an hour
  lease_us int8 not null,           -- set with the digest: lease of the policy, by which renewals move due_at
  ahead_us int8 not null,           -- set with the digest: retention less lease, the distance from the end of a first lease to reap_at
  keep_us int8 not null,            -- set with the digest: retention and tombstone, the longest life of a record after its last write
  data bytea not null,              -- set with the digest: the policy as CBOR
  constraint ibid_policy_pkey primary key (digest)
);

-- How far the lease scan has come, for each policy.
create table ibid_walk (
  policy int8 not null,             -- set by the first lease scan under the policy: its number
  at int8 not null,                 -- set by each lease scan: every first lease that ended before was looked at
  constraint ibid_walk_pkey primary key (policy)
);

-- Records whose row was locked when the lease scan came by; the next scan looks at them again.
create table ibid_late (
  id uuid not null,                 -- set by the lease scan: id of the record
  constraint ibid_late_pkey primary key (id)
);

-- History of records, for operators. It outlives its record.
create table ibid_event (
  seq int8 generated always as identity, -- set by the insert: order of the lines
  at int8 not null,                 -- set by the insert: instant of the event
  id uuid not null,                 -- set by the insert: id of the record
  what text not null,               -- set by the insert: kind of event, for example `takeover`
  detail text not null,             -- set by the insert: text for an operator
  constraint ibid_event_pkey primary key (seq)
);
create index ibid_event_id on ibid_event (id, seq);
alter table ibid_event set (autovacuum_vacuum_scale_factor = 0.02);

-- Settings that all processes on this database must agree on, each changed by compare-and-set.
create table ibid_meta (
  name text not null,               -- set by the first writer: name of the setting
  value bytea not null,             -- set by each writer that wins
  constraint ibid_meta_pkey primary key (name)
);

-- Rows as the hot path sends them: one array of rows is read several times faster than one array per column. A type is never
-- altered, because older processes still send it as it was: another form gets another name.
create type ibid_fresh_row as (
  id uuid, nonce int8, lease_us int8, keep_us int8, policy int8, flags int2, fingerprint bytea,
  tenant text, method text, path text, key text, note text
);
create type ibid_finish_row as (
  tid tid, id uuid, was_nonce int8, nonce int8, expires_us int8, purge_us int8, status int4, state int2, flags int2,
  note text, lines bytea, body bytea, apart bytea
);
