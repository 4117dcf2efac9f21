-- Records with their answers; the answer of an earlier generation is not a record's own.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note,
       (select b.data from ibid_body b where b.born_at = r.created_at and b.birth = r.birth and b.kind = 1),
       (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
from unnest($1::bytea[]) as w (id)
cross join lateral (select * from ibid_record x where x.id = w.id limit 1) r
