-- Effects in state $5, or in state $6 and never due, of one record if $4 says so, in the order of their places.
select seq, record, birth, tenant, name, kind, count::int8, nonce, state::int8, tries::int8, due_at, created_at, called_at,
  ended_at, done_at, aggregate, downstream_key, rules, owes, trace, payload, result, provider_id, last_error,
  coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8)
from ibid_effect
where seq > $2 and (state = $5::int8::int2 or (state = $6::int8::int2 and due_at is null))
  and ($4::bytea is null or record = $4)
order by seq
limit $3
