-- Replaces a record that is still at the version $31, $32. Returns now; no row: it is at another version, or gone.
--
-- $1 to $30 are those of insert.sql. Where $33 is set, the record must also be due, and a locked row counts as not due: a
-- takeover never waits, because the lock holder may still renew or finish. The marks $11 to $13 keep an instant (0), set it
-- to now (1) or clear it (2). The response is kept (0), set (1) or cleared (2) by $25; a row that gets another birth keeps none.
--
-- In the order of the reaper a row only moves forward, unless it gets another generation.
with t as materialized (
  select coalesce($28::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now,
         case when $29::boolean and current_setting('synchronous_commit') not in ('on', 'remote_apply')
              then set_config('synchronous_commit', 'on', true) end as raised
),
free as materialized (
  select x.id
  from t, ibid_record x
  where $33::boolean and x.id = encode($1::bytea, 'hex')::uuid and x.due_at <= t.now
  for no key update of x skip locked
)
update ibid_record r set
  count = $2::int8::bit(32)::int4, nonce = $3::int8, birth = $4::int8, owner = $5::int8,
  attempt = $6::int8::bit(32)::int4, state = $7::int8::int2, flags = $8::int8::int2, policy = $9::int8,
  point = $10::int8::int4,
  created_at = case $11::int8 when 0 then r.created_at else t.now end,
  ran_at = case $12::int8 when 0 then r.ran_at when 1 then t.now end,
  completed_at = case $13::int8 when 0 then r.completed_at when 1 then t.now end,
  due_at = t.now + $14::int8, expires_at = t.now + $15::int8, purge_at = t.now + $16::int8,
  reap_at = case $11::int8
    when 0 then least(r.reap_at, case when $16::int8 is not null then t.now + least($15::int8, $16::int8) end)
    else t.now + least($15::int8, $16::int8, $17::int8)
  end,
  watch_state = case when $30::boolean then $7::int8::int2 end,
  watch_at = case when $30::boolean then coalesce(t.now + $14::int8, 9223372036854775807) end,
  fingerprint = $18::bytea, tenant = $19::text, method = $20::text, path = $21::text, key = $22::text, note = $23::text,
  status = $24::int8::int4,
  lines = case $25::int8 when 1 then $26::bytea when 0 then case when r.birth = $4::int8 then r.lines end end,
  body = case $25::int8 when 1 then $27::bytea when 0 then case when r.birth = $4::int8 then r.body end end,
  sealed_by = case $25::int8 when 0 then case when r.birth = $4::int8 then r.sealed_by end end
from t
where r.id = encode($1::bytea, 'hex')::uuid
  and r.count = $31::int8::bit(32)::int4 and r.nonce = $32::int8
  and (not $33::boolean or r.id = (select id from free) and r.due_at <= t.now)
returning t.now
