-- Thin rows that append, bodies apart. Instants are microseconds since the epoch; nonces are unsigned
-- 64-bit numbers kept with the same bits; codes are those of ibid-core.

-- A rowid table: rows append, so the finish of a record dirties the page that its begin dirtied a moment
-- before. Keyed by its random id instead, every write would dirty a page of its own.
create table ibid_record (
  row integer primary key,
  id blob not null unique,
  count integer not null,           -- with `nonce`: the version
  nonce integer not null,
  birth integer not null,           -- the nonce of the insert: one generation
  owner integer not null,           -- the nonce of the attempt that runs or ran last
  attempt integer not null,
  lease_us integer not null,        -- how far a renewal moves due_at
  state integer not null,
  flags integer not null,
  policy integer not null,
  point integer not null,
  created_at integer not null,
  ran_at integer,
  completed_at integer,
  due_at integer,                   -- lease end, next reconciliation or pending deadline
  expires_at integer,               -- replay ends
  purge_at integer,                 -- the row goes
  fingerprint blob,
  tenant text not null,
  method text not null,
  path text not null,
  key text not null,
  note blob not null
) strict;

-- Most records are completed and never due again: both orders hold only those that upkeep will ask for.
create index ibid_record_due on ibid_record (state, due_at) where due_at is not null;
create index ibid_record_purge on ibid_record (purge_at) where purge_at is not null;

-- slot = ibid_record.row * 131072 + the code of its kind (at most 16 + 65535). One number instead of a composite
-- key makes this a rowid table too: it appends, and an answer of up to 4 kB needs no overflow page.
create table ibid_body (
  slot integer primary key,
  birth integer not null,           -- the generation that wrote it; no other may see it
  data blob not null
) strict;

-- The rules that records were begun with, each set once.
create table ibid_policy (
  id integer primary key,
  data blob not null unique
) strict;

-- What a person will ask about. It outlives its record.
create table ibid_event (
  seq integer primary key,
  id blob not null,
  at integer not null,
  what integer not null,
  detail text not null
) strict;
create index ibid_event_id on ibid_event (id);

-- Small values that every process on this file must agree on.
create table ibid_meta (
  name text primary key,
  value blob not null
) strict, without rowid;
