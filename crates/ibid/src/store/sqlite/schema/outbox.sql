-- Effects: calls to other services, to be made or made already. An effect outlives its record, so no foreign key ties it to
-- one. Instants are microseconds since 1970; nonces are unsigned 64-bit numbers stored with the same bits; codes are those
-- of ibid-core, and the view `ibid_effects` shows names and readable instants instead.

-- The part of an effect that changes, and what workers, lists and the reaper order by.
create table ibid_effect (
  seq integer primary key,          -- number in the outbox; enqueue copies it from `ibid_effect_call`
  nonce integer not null,           -- with `count`: the version, the fence; every writer draws one, an unblock keeps it
  due_at integer,                   -- next try, end of the claim or next verification; null if no worker has to come
  lease_us integer not null,        -- length of a claim; enqueue copies it from the rules
  created_at integer not null,      -- set by enqueue
  called_at integer,                -- first call; set by the claim for it, cleared when it is certain that none was made
  ended_at integer,                 -- end of the last call; set while its outcome is unknown, cleared afterwards
  done_at integer,                  -- set when it is done or discarded, permanently; null: the effect is open
  count integer not null,           -- writes so far, 1 at enqueue
  tries integer not null,           -- claims and verifications since enqueue or since an operator's retry
  state integer not null,           -- code of the state; the machine decides it
  blocked integer not null,         -- 1: an earlier effect of its aggregate is open; set by enqueue, cleared once by a worker's look
  dead_letter integer not null,     -- 1: an operator must look at it; every change of the state sets or clears it
  tenant text not null,             -- tenant of the record; an aggregate belongs to one tenant
  kind text not null,               -- selects the handler; set by enqueue
  aggregate text,                   -- effects of one aggregate run in the order of their commits; set by enqueue
  provider_id text,                 -- the provider's id of the call; set with its result, stays when payload and result go
  last_error text                   -- reason why the last try failed, cut to about 1 kB; set by the worker
) strict;
-- Blocked effects are not in this index: a look reads what it may take, whatever waits.
create index ibid_effect_due on ibid_effect (kind, state, due_at) where due_at is not null and blocked = 0;
-- The same effects by tenant. A look goes by it past a tenant that has its share of the worker's slots, however many effects
-- of that tenant are due.
create index ibid_effect_tenant on ibid_effect (kind, state, tenant, due_at) where due_at is not null and blocked = 0;
-- The open effects of an aggregate; the first may run.
create index ibid_effect_order on ibid_effect (tenant, aggregate, seq) where aggregate is not null and done_at is null;
-- Lists of operators.
create index ibid_effect_state on ibid_effect (state, seq);
create index ibid_effect_dead on ibid_effect (seq) where dead_letter = 1;
-- Webhooks that name the provider's id.
create index ibid_effect_provider on ibid_effect (provider_id) where provider_id is not null;

-- The part of an effect that enqueue writes once, and the result of its call. A number is never used again, so a cursor in a
-- list stays valid.
create table ibid_effect_call (
  seq integer primary key autoincrement,  -- drawn by enqueue; within an aggregate, in the order of commits
  birth integer not null,           -- generation of the record that enqueued it
  owes integer not null,            -- 1: the record's response waits for this effect
  letter integer not null,          -- 1: a notice to an operator, not a call; the reaper keeps the row, so that its name stays taken
  record blob not null,             -- id of the record that enqueued it, which may be gone
  name text not null,               -- name within the record; a second effect of that name is refused
  downstream_key text not null,     -- key that the provider gets with every try
  rules text not null,              -- EffectRules as JSON: safety, tries_max, lease_ms, settle_ms, key_window_ms
  trace text,                       -- W3C `traceparent` of the request that caused it
  payload blob,                     -- input of the handler; the reaper sets it to null when the record's response goes
  result blob,                      -- result of the call; set by the worker, set to null together with the payload
  unique (record, birth, name)
) strict;
create index ibid_effect_call_key on ibid_effect_call (downstream_key);

-- Aggregates whose first open effect may be another one now. The transaction that enqueues or ends an effect of an
-- aggregate adds a row; the next look of a worker deletes it and unblocks the first open effect.
create table ibid_effect_turn (
  id integer primary key,           -- order of the additions
  tenant text not null,             -- tenant of the aggregate
  aggregate text not null           -- the aggregate to look at
) strict;

-- Effects as people read them. A code that a newer version of ibid added is shown as a number.
create view ibid_effects as
select
  e.seq,                            -- number in the outbox, as in `ibid effects list`
  case e.state when 1 then 'queued' when 2 then 'claimed' when 3 then 'done' when 4 then 'unknown' when 5 then 'dead'
    when 6 then 'discarded' else cast(e.state as text) end as state,  -- name of the state
  e.blocked,                        -- 1: waits for an earlier effect of its aggregate
  e.dead_letter,                    -- 1: an operator must look at it
  e.tenant,                         -- tenant of the record
  e.kind,                           -- selects the handler
  c.name,                           -- name within the record
  e.aggregate,                      -- effects of one aggregate run in order
  e.tries,                          -- claims and verifications so far
  strftime('%Y-%m-%dT%H:%M:%fZ', e.due_at / 1e6, 'unixepoch') as due_at,          -- next try, end of the claim or next verification
  strftime('%Y-%m-%dT%H:%M:%fZ', e.created_at / 1e6, 'unixepoch') as created_at,  -- when it was enqueued
  strftime('%Y-%m-%dT%H:%M:%fZ', e.called_at / 1e6, 'unixepoch') as called_at,    -- just before the first call
  strftime('%Y-%m-%dT%H:%M:%fZ', e.ended_at / 1e6, 'unixepoch') as ended_at,      -- end of the last call, while its outcome is unknown
  strftime('%Y-%m-%dT%H:%M:%fZ', e.done_at / 1e6, 'unixepoch') as done_at,        -- when it was done or discarded
  c.downstream_key,                 -- key that the provider gets with every try
  e.provider_id,                    -- the provider's id of the call
  e.last_error,                     -- reason why the last try failed
  c.record,                         -- id of the record that enqueued it
  c.owes,                           -- 1: the record's response waits for it
  c.letter,                         -- 1: a notice to an operator, not a call
  c.rules,                          -- rules for running it, as JSON
  c.trace,                          -- W3C `traceparent`
  c.payload,                        -- input of the handler, until the record's response goes
  c.result                          -- result of the call, until the record's response goes
from ibid_effect e
join ibid_effect_call c on c.seq = e.seq;
