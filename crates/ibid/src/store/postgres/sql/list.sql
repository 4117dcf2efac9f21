-- Lists records in the order of ids, without their responses: one piece of the order, behind the id $13 and up to $16, and
-- within $1 and $2. No index serves its other filters, because every write would pay for one; so a piece is bounded.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy,
       r.point, r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, r.status, null::bytea, null::bytea, null::text,
       (extract(epoch from statement_timestamp()) * 1000000)::int8, coalesce(r.watch_at, 0)
from ibid_record r
where r.id >= $1::uuid and r.id <= $2::uuid and r.id > $13::uuid and r.id <= $16::uuid
  and ($3::int8 is null or r.state = $3::int8::int2)
  and ($4::text is null or r.tenant = $4)
  and ($5::text is null or r.key = $5)
  and ($6::text is null or r.method = $6)
  and ($7::text is null or r.path like $7)
  and ($8::int8 is null or length(r.path) - length(replace(r.path, '/', '')) = $8)
  and ($9::int8 is null or r.created_at >= $9)
  and ($10::int8 is null or r.created_at < $10)
  and ($11::int8 is null or r.created_at < (extract(epoch from statement_timestamp()) * 1000000)::int8 - $11)
order by r.id
limit $14::int8
