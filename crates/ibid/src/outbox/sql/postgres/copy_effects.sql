-- Stores the part of copied effects that changes, from the JSON array $1. An open effect of an aggregate is blocked, and gets
-- a turn (copy_turns.sql): the first look of a worker unblocks the one that is first.
insert into ibid_effect (
  seq, nonce, due_at, lease_us, created_at, called_at, ended_at, done_at, count, tries, state, blocked, dead_letter, tenant,
  kind, aggregate, provider_id, last_error
)
select x.seq, x.nonce, x.due_at, x.lease_us, x.created_at, x.called_at, x.ended_at, x.done_at, x.count::bit(32)::int4, x.tries,
       x.state, x.aggregate is not null and x.done_at is null, x.dead_letter, x.tenant, x.kind, x.aggregate, x.provider_id,
       x.last_error
from json_to_recordset($1::text::json) x (
  seq int8, nonce int8, due_at int8, lease_us int8, created_at int8, called_at int8, ended_at int8, done_at int8, count int8,
  tries int4, state int2, dead_letter boolean, tenant text, kind text, aggregate text, provider_id text, last_error text
)
on conflict (seq) do update set (
  nonce, due_at, called_at, ended_at, done_at, count, tries, state, blocked, dead_letter, provider_id, last_error
) = (
  excluded.nonce, excluded.due_at, excluded.called_at, excluded.ended_at, excluded.done_at, excluded.count, excluded.tries,
  excluded.state, excluded.blocked, excluded.dead_letter, excluded.provider_id, excluded.last_error
)
