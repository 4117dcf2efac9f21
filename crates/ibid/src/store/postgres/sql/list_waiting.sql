-- Lists records in the state $3, which is not running and not completed, through the order of due records: behind the
-- position $12, $13 and up to $15, $16; otherwise as list.sql does.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy,
       r.point, r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, r.status, null::bytea, null::bytea, null::text,
       (extract(epoch from statement_timestamp()) * 1000000)::int8, coalesce(r.watch_at, 0)
from ibid_record r
where r.watch_state = $3::int8::int2
  and r.watch_at >= $12::int8
  and (r.watch_at, r.id) > ($12::int8, $13::uuid) and (r.watch_at, r.id) <= ($15::int8, $16::uuid)
  and r.id >= $1::uuid and r.id <= $2::uuid
  and ($3::int8 is null or r.state = $3::int8::int2)
  and ($4::text is null or r.tenant = $4)
  and ($5::text is null or r.key = $5)
  and ($6::text is null or r.method = $6)
  and ($7::text is null or r.path like $7)
  and ($8::int8 is null or length(r.path) - length(replace(r.path, '/', '')) = $8)
  and ($9::int8 is null or r.created_at >= $9)
  and ($10::int8 is null or r.created_at < $10)
  and ($11::int8 is null or r.created_at < (extract(epoch from statement_timestamp()) * 1000000)::int8 - $11)
order by r.watch_at, r.id
limit $14::int8
