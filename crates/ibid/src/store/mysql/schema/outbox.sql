-- Effects: calls to other services, to be made or made already. An effect outlives its record, so no foreign key ties it to
-- one. Instants are microseconds since 1970; nonces are unsigned 64-bit numbers stored with the same bits; codes are those
-- of ibid-core, and the view `ibid_effects` shows names and readable instants instead.

-- The part of an effect that changes, and what workers, lists and the reaper order by.
create table if not exists ibid_effect (
  seq bigint not null,              -- number in the outbox; enqueue copies it from `ibid_effect_call`
  nonce bigint not null,            -- with `count`: the version, the fence; every writer draws one, an unblock keeps it
  due_at bigint,                    -- next try, end of the claim or next verification; null if no worker has to come
  lease_us bigint not null,         -- length of a claim; enqueue copies it from the rules
  created_at bigint not null,       -- set by enqueue
  called_at bigint,                 -- first call; set by the claim for it, cleared when it is certain that none was made
  ended_at bigint,                  -- end of the last call; set while its outcome is unknown, cleared afterwards
  done_at bigint,                   -- set when it is done or discarded, permanently; null: the effect is open
  written_at bigint not null,       -- set by every write: now; a writer reads it back after a write
  count int unsigned not null,      -- writes so far, 1 at enqueue
  tries int unsigned not null,      -- claims and verifications since enqueue or since an operator's retry
  state tinyint not null,           -- code of the state; the machine decides it
  blocked boolean not null,         -- an earlier effect of its aggregate is open; set by enqueue, cleared once by a worker's look
  dead_letter boolean not null,     -- an operator must look at it; every change of the state sets or clears it
  tenant varbinary(255) not null,   -- tenant of the record; an aggregate belongs to one tenant
  kind varbinary(512) not null,     -- selects the handler; set by enqueue
  aggregate varbinary(512),         -- effects of one aggregate run in the order of their commits; set by enqueue
  provider_id varbinary(516),       -- the provider's id of the call; set with its result, stays when payload and result go
  last_error varbinary(1028),       -- reason why the last try failed, cut to about 1 kB; set by the worker
  primary key (seq),
  -- What a look may take: it reads one kind and state, and no blocked effect.
  key ibid_effect_due (kind, state, blocked, due_at),
  -- The same by tenant. A look goes by it past a tenant that has its share of the worker's slots, however many effects of that
  -- tenant are due.
  key ibid_effect_tenant (kind, state, blocked, tenant, due_at),
  -- The open effects of an aggregate have no done_at; the first of them may run.
  key ibid_effect_order (tenant, aggregate, done_at, seq),
  -- Lists of operators.
  key ibid_effect_state (state, seq),
  key ibid_effect_dead (dead_letter, seq),
  -- Webhooks that name the provider's id.
  key ibid_effect_provider (provider_id)
) engine = InnoDB row_format = dynamic;

-- The part of an effect that enqueue writes once, and the result of its call.
create table if not exists ibid_effect_call (
  seq bigint not null auto_increment, -- drawn by enqueue; within an aggregate, in the order of commits
  birth bigint not null,            -- generation of the record that enqueued it
  owes boolean not null,            -- the record's response waits for this effect
  letter boolean not null,          -- a notice to an operator, not a call; the reaper keeps the row, so that its name stays taken
  record binary(16) not null,       -- id of the record that enqueued it, which may be gone
  name varbinary(512) not null,     -- name within the record; a second effect of that name is refused
  downstream_key varbinary(512) not null, -- key that the provider gets with every try
  rules blob not null,              -- EffectRules as JSON: safety, tries_max, lease_ms, settle_ms, key_window_ms
  trace varbinary(512),             -- W3C `traceparent` of the request that caused it
  payload longblob,                 -- input of the handler; the reaper sets it to null when the record's response goes
  result longblob,                  -- result of the call; set by the worker, set to null together with the payload
  primary key (seq),
  unique key ibid_effect_call_once (record, birth, name),
  key ibid_effect_call_key (downstream_key)
) engine = InnoDB row_format = dynamic;

-- Aggregates whose first open effect may be another one now. The transaction that enqueues or ends an effect of an
-- aggregate adds a row; the next look of a worker deletes it and unblocks the first open effect.
create table if not exists ibid_effect_turn (
  id bigint not null auto_increment, -- order of the additions
  tenant varbinary(255) not null,   -- tenant of the aggregate
  aggregate varbinary(512) not null, -- the aggregate to look at
  primary key (id)
) engine = InnoDB row_format = dynamic;

-- Rows that transactions lock while they enqueue an effect of an aggregate, so that its effects get their numbers in the order of
-- their commits. There are 4,096 at most; aggregates share them by a checksum of tenant and aggregate.
create table if not exists ibid_effect_lock (
  slot int not null,                -- set by the first enqueue that needs the row: the checksum's last 12 bits
  primary key (slot)
) engine = InnoDB row_format = dynamic;

-- Effects as people read them. A code that a newer version of ibid added is shown as a number.
create or replace view ibid_effects as
select
  e.seq,                            -- number in the outbox, as in `ibid effects list`
  case e.state when 1 then 'queued' when 2 then 'claimed' when 3 then 'done' when 4 then 'unknown' when 5 then 'dead'
    when 6 then 'discarded' else concat(e.state) end as state,  -- name of the state
  e.blocked,                        -- 1: waits for an earlier effect of its aggregate
  e.dead_letter,                    -- 1: an operator must look at it
  convert(e.tenant using utf8mb4) as tenant,       -- tenant of the record
  convert(e.kind using utf8mb4) as kind,           -- selects the handler
  convert(c.name using utf8mb4) as name,           -- name within the record
  convert(e.aggregate using utf8mb4) as aggregate, -- effects of one aggregate run in order
  e.tries,                          -- claims and verifications so far
  timestampadd(microsecond, e.due_at, '1970-01-01') as due_at,          -- next try, end of the claim or next verification
  timestampadd(microsecond, e.created_at, '1970-01-01') as created_at,  -- when it was enqueued
  timestampadd(microsecond, e.called_at, '1970-01-01') as called_at,    -- just before the first call
  timestampadd(microsecond, e.ended_at, '1970-01-01') as ended_at,      -- end of the last call, while its outcome is unknown
  timestampadd(microsecond, e.done_at, '1970-01-01') as done_at,        -- when it was done or discarded
  convert(c.downstream_key using utf8mb4) as downstream_key,  -- key that the provider gets with every try
  convert(e.provider_id using utf8mb4) as provider_id,        -- the provider's id of the call
  convert(e.last_error using utf8mb4) as last_error,          -- reason why the last try failed
  lower(hex(c.record)) as record,   -- id of the record that enqueued it
  c.owes,                           -- 1: the record's response waits for it
  c.letter,                         -- 1: a notice to an operator, not a call
  convert(c.rules using utf8mb4) as rules,  -- rules for running it, as JSON
  convert(c.trace using utf8mb4) as trace,  -- W3C `traceparent`
  c.payload,                        -- input of the handler, until the record's response goes
  c.result                          -- result of the call, until the record's response goes
from ibid_effect e
join ibid_effect_call c on c.seq = e.seq;
