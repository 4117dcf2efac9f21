
-- The end of every statement that returns effects (effect.sql): the rows of `e`, each with its row of `ibid_effect_call`. The
-- `offset 0` makes the server look up each call by its number, however many rows it expects.
select e.seq, uuid_send(c.record), c.birth, e.tenant, c.name, e.kind, e.count::int8, e.nonce, e.state::int8, e.tries::int8, e.due_at,
  e.created_at, e.called_at, e.ended_at, e.done_at, e.aggregate, c.downstream_key, c.rules, c.owes, c.letter, c.trace, c.payload,
  c.result, e.provider_id, e.last_error, t.now
from e
cross join t
cross join lateral (select x.* from ibid_effect_call x where x.seq = e.seq offset 0) c
order by e.seq
