-- Stores the part of copied effects that changes, from the JSON array ?1. An open effect of an aggregate is blocked, and gets
-- a turn (copy_turns.sql): the first look of a worker unblocks the one that is first.
insert or replace into ibid_effect (
  seq, nonce, due_at, lease_us, created_at, called_at, ended_at, done_at, count, tries, state, blocked, dead_letter, tenant,
  kind, aggregate, provider_id, last_error
)
select v ->> 'seq', v ->> 'nonce', v ->> 'due_at', v ->> 'lease_us', v ->> 'created_at', v ->> 'called_at', v ->> 'ended_at',
       v ->> 'done_at', v ->> 'count', v ->> 'tries', v ->> 'state', v ->> 'aggregate' is not null and v ->> 'done_at' is null,
       v ->> 'dead_letter', v ->> 'tenant', v ->> 'kind', v ->> 'aggregate', v ->> 'provider_id', v ->> 'last_error'
from (select x.value as v from json_each(?1) x)
