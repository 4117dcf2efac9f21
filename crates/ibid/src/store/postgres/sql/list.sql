-- Records that fit, in the order of their ids, without their answers: a list is read by a person. Tenant, key
-- and state have no index of their own, for every write would pay for it and operators ask rarely.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, null::bytea,
       (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
from ibid_record r
where r.id >= $1 and r.id <= $2 and r.id > $3
  and ($4::int8 is null or r.state = $4::int8::int2)
  and ($5::text is null or r.tenant = $5)
  and ($6::text is null or r.key = $6)
order by r.id
limit $7
