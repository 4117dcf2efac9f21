-- Lock a record for the rest of the caller's transaction: until it ends, the lock is the lease. A caller that falls
-- silent with the lock in hand is cut off after $3 ms.
select coalesce($2::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8),
       r.count::int8, r.nonce, r.birth, r.owner, r.attempt::int8, r.state::int8, r.flags::int8, r.policy, p.data,
       r.point::int8, r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, b.data
from ibid_record r
left join ibid_policy p on p.digest = r.policy
left join ibid_body b on b.born_at = r.created_at and b.birth = r.birth and b.kind = 1
cross join (select set_config('idle_in_transaction_session_timeout', $3::int8::text, true) as set) s
where r.id = $1 and s.set is not null
for no key update of r
