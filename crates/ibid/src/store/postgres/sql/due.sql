-- Records in one state whose due instant has passed, longest due first. Those in their first lease are not among them until
-- walk.sql has come by.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note,
       (select b.data from ibid_body b where b.born_at = r.created_at and b.birth = r.birth and b.kind = 1),
       (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
from ibid_record r
where r.watch_state = $1::int8::int2
  and r.watch_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8
order by r.watch_at
limit $2
