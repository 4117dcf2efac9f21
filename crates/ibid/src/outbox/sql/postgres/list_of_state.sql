-- Effects in one state, in the order of their places.
select seq, record, birth, tenant, name, kind, count::int8, nonce, state::int8, tries::int8, due_at, created_at, called_at,
  ended_at, done_at, aggregate, downstream_key, rules, owes, trace, payload, result, provider_id, last_error,
  coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8)
from ibid_effect
where seq > $2 and state = $4::int8::int2
order by seq
limit $3
