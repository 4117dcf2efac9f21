-- The effect that is called under one key. Two rows would mean that the key is not one call's.
select seq, record, birth, tenant, name, kind, count, nonce, state, tries, due_at, created_at, called_at, ended_at, done_at,
  aggregate, downstream_key, rules, owes, trace, payload, result, provider_id, last_error, ?1
from ibid_effect
where downstream_key = ?2
limit 2
