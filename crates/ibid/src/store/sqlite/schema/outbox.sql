-- The outbox: calls to the outside still to be made, and their results. No foreign key: an effect outlives its
-- record. Its number is never used again, so that a reader that has seen one has seen all before it.
create table ibid_effect (
  seq integer primary key autoincrement,
  record blob not null,
  birth integer not null,           -- the generation of the record that enqueued it
  name text not null,
  count integer not null,           -- with `nonce`: the version
  nonce integer not null,
  kind text not null,
  state integer not null,
  open integer not null,            -- 1 while it is neither done nor discarded
  tries integer not null,
  due_at integer,                   -- next try, or end of the claim
  lease_us integer not null,        -- how far a claim or its renewal moves due_at
  created_at integer not null,
  called_at integer,                -- first call: the provider's memory of the key counts from here
  done_at integer,
  aggregate text,                   -- effects of one aggregate are carried out in order
  downstream_key text not null,
  rules blob not null,
  owes integer not null,            -- 1 if the record's response waits for it
  tenant text not null,
  trace text,
  payload blob not null,
  result blob,
  provider_id text,
  last_error text,
  ended_at integer,                 -- end of the last call with an unknown outcome: "not executed" counts only after it
  unique (record, birth, name)      -- a replay never enqueues a second one; also finds a record's effects
) strict;

create index ibid_effect_due on ibid_effect (state, due_at) where due_at is not null;
create index ibid_effect_aggregate on ibid_effect (aggregate, seq) where open = 1 and aggregate is not null;
create index ibid_effect_downstream_key on ibid_effect (downstream_key);
create index ibid_effect_provider_id on ibid_effect (provider_id) where provider_id is not null;
