-- Reserve a record inside the caller's transaction, waiting for another's uncommitted one as long as lock_timeout lets
-- it. No row back means that somebody else's is there. It gets its place in the reaper's order when it is finished. Where
-- it must last ($24) the session's commit waits for the disk, and for synchronous standbys.
with t as materialized (
       select coalesce($2::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now,
              case when $24::boolean and current_setting('synchronous_commit') not in ('on', 'remote_apply')
                   then set_config('synchronous_commit', 'on', true) end as raised
     )
insert into ibid_record (
  id, count, nonce, birth, owner, attempt, lease_us, state, flags, policy, point,
  created_at, ran_at, completed_at, due_at, expires_at, purge_at, reap_at, watch_state, watch_at,
  fingerprint, tenant, method, path, key, note
)
select $1, $3, $4, $5, $6, $7, $8, $9::int8::int2, $10::int8::int2, $11, $12::int8::int4,
  t.now, case when $13 then t.now end, case when $14 then t.now end, t.now + $15, t.now + $16, t.now + $17,
  least(t.now + $16, t.now + $17), case when $15 is not null then $9::int8::int2 end, t.now + $15,
  $18, $19, $20, $21, $22, $23
from t
on conflict (id) do nothing
returning created_at
