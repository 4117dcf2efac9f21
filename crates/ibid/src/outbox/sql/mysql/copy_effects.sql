-- Stores the part of copied effects that changes, from the JSON array ?1. An open effect of an aggregate is blocked, and gets
-- a turn (copy_turns.sql): the first look of a worker unblocks the one that is first.
replace into ibid_effect (
  seq, nonce, due_at, lease_us, created_at, called_at, ended_at, done_at, written_at, count, tries, state, blocked, dead_letter,
  tenant, kind, aggregate, provider_id, last_error
)
select x.seq, x.nonce, x.due_at, x.lease_us, x.created_at, x.called_at, x.ended_at, x.done_at,
       timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)), x.`count`, x.tries, x.state,
       x.aggregate is not null and x.done_at is null, x.dead_letter, x.tenant, x.kind, x.aggregate, x.provider_id, x.last_error
from json_table(convert(?1 using utf8mb4), '$[*]' columns (
  seq bigint path '$.seq', nonce bigint path '$.nonce', due_at bigint path '$.due_at', lease_us bigint path '$.lease_us',
  created_at bigint path '$.created_at', called_at bigint path '$.called_at', ended_at bigint path '$.ended_at',
  done_at bigint path '$.done_at', `count` int unsigned path '$.count', tries int unsigned path '$.tries',
  state int path '$.state', dead_letter int path '$.dead_letter', tenant longtext path '$.tenant', kind longtext path '$.kind',
  aggregate longtext path '$.aggregate', provider_id longtext path '$.provider_id', last_error longtext path '$.last_error'
)) x
