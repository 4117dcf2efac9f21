
-- The end of every statement that returns effects (effect.sql): the rows of `e`, each with its row of `ibid_effect_call`. ?1 is
-- SQLite's.
select e.seq, c.record, c.birth, e.tenant, c.name, e.kind, e.count, e.nonce, e.state, e.tries, e.due_at, e.created_at,
  e.called_at, e.ended_at, e.done_at, e.aggregate, c.downstream_key, c.rules, c.owes, c.letter, c.trace, c.payload, c.result,
  e.provider_id, e.last_error, timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
from e
straight_join ibid_effect_call c force index (primary) on c.seq = e.seq
order by e.seq
