-- Replace what is kept of an effect, at the version that was read. No row back means that it is somebody else's by now.
-- The marks $11 and $16, of the instant of the first call and of that of the last one's end: 0 keeps it, 1 sets it to now,
-- 2 clears it. Result and provider's id are of the call: they go with the instant of the first. A worker that falls silent
-- with the row locked is cut off after the effect's lease: takers pass over what is locked. Where it must last ($17) the
-- session's commit waits for the disk, and for synchronous standbys.
with t as materialized (
       select coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now,
              case when $17::boolean and current_setting('synchronous_commit') not in ('on', 'remote_apply')
                   then set_config('synchronous_commit', 'on', true) end as raised
     )
update ibid_effect e set
  count = $5::int8::int4, nonce = $6, state = $7::int8::int2, open = $8, tries = $9::int8::int4, due_at = t.now + $10,
  called_at = case $11::int8 when 0 then e.called_at when 1 then t.now end,
  ended_at = case $16::int8 when 0 then e.ended_at when 1 then t.now end,
  done_at = case when $12::boolean then t.now else e.done_at end,
  result = case when $11::int8 = 2 then $13 else coalesce($13, e.result) end,
  provider_id = case when $11::int8 = 2 then $14 else coalesce($14, e.provider_id) end,
  last_error = coalesce($15, e.last_error)
from t
where e.seq = $2 and e.count = $3::int8::int4 and e.nonce = $4
  and set_config('idle_in_transaction_session_timeout', least(greatest(e.lease_us / 1000, 1), 2147483647)::text, true) <> ''
returning t.now
