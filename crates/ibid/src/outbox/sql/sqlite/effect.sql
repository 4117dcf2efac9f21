
-- The end of every statement that returns effects (effect.sql): the rows of `e`, each with its row of `ibid_effect_call`.
select e.seq, c.record, c.birth, e.tenant, c.name, e.kind, e.count, e.nonce, e.state, e.tries, e.due_at, e.created_at,
  e.called_at, e.ended_at, e.done_at, e.aggregate, c.downstream_key, c.rules, c.owes, c.letter, c.trace, c.payload, c.result,
  e.provider_id, e.last_error, ?1
from e
cross join ibid_effect_call c
where c.seq = e.seq
order by e.seq
