-- Records that fit, in the order of their ids, without their answers: a list is read by a person. What it asks for
-- has no index of its own, for every write would pay for it and operators ask rarely.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, null::bytea,
       (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
from ibid_record r
where r.id >= $1 and r.id <= $2 and r.id > $3
  and ($4::int8 is null or r.state = $4::int8::int2)
  and ($5::text is null or r.tenant = $5)
  and ($6::text is null or r.key = $6)
  and ($7::text is null or r.method = $7)
  and ($8::text is null or r.path like $8)
  and ($9::int8 is null or length(r.path) - length(replace(r.path, '/', '')) = $9)
  and ($10::int8 is null or r.flags & $10::int8::int2 <> 0)
  and ($11::int8 is null or r.created_at >= $11)
  and ($12::int8 is null or r.created_at < $12)
  and ($13::int8 is null
    or r.created_at < (extract(epoch from statement_timestamp()) * 1000000)::int8 - $13)
order by r.id
limit $14
