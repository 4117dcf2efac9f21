-- Effects in the order of their places.
select seq, record, birth, tenant, name, kind, count, nonce, state, tries, due_at, created_at, called_at, ended_at, done_at,
  aggregate, downstream_key, rules, owes, trace, payload, result, provider_id, last_error, ?1
from ibid_effect
where seq > ?2
order by seq
limit ?3
