-- Replace a record inside the caller's transaction, at the version that was locked. No row back means that it is
-- somebody else's by now. Marks ($16 to $18): 0 keeps the instant, 1 sets it to now, 2 clears it. Where it
-- must last ($28) the session's commit waits for the disk, and for synchronous standbys.
with t as materialized (
       select coalesce($2::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now,
              case when $28::boolean and current_setting('synchronous_commit') not in ('on', 'remote_apply')
                   then set_config('synchronous_commit', 'on', true) end as raised
     )
update ibid_record r set
  count = $6, nonce = $7, birth = $8, owner = $9, attempt = $10, lease_us = $11,
  state = $12::int8::int2, flags = $13::int8::int2, policy = $14, point = $15::int8::int4,
  created_at = case $16::int8 when 0 then created_at else t.now end,
  ran_at = case $17::int8 when 0 then ran_at when 1 then t.now end,
  completed_at = case $18::int8 when 0 then completed_at when 1 then t.now end,
  due_at = t.now + $19, expires_at = t.now + $20, purge_at = t.now + $21,
  reap_at = least(case $16::int8 when 0 then reap_at end, t.now + $20, t.now + $21),
  watch_state = case when $19 is not null then $12::int8::int2 end, watch_at = t.now + $19,
  fingerprint = $22, tenant = $26, method = $23, path = $24, key = $27, note = $25, bare = false
from t
where r.id = $1 and r.count = $3 and r.nonce = $4 and (not $5::boolean or r.due_at <= t.now)
returning t.now
