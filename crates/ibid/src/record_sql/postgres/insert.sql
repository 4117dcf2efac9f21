-- Inserts a record unless its id exists. Returns when it was created; no row: another writer's record is there.
--
-- It waits for another transaction's uncommitted row as long as lock_timeout allows. $1 to $27 are those of
-- `RecordColumns::params`, $28 is now (null: the server's clock). Where $29 is set, the commit of this transaction waits for
-- the disk and for synchronous standbys, whatever the session is set to. $30: the record is in the order of due records.
with t as materialized (
  select coalesce($28::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now,
         case when $29::boolean and current_setting('synchronous_commit') not in ('on', 'remote_apply')
              then set_config('synchronous_commit', 'on', true) end as raised
)
insert into ibid_record (
  id, count, nonce, birth, owner, attempt, state, flags, policy, point,
  created_at, ran_at, completed_at, due_at, expires_at, purge_at, reap_at, watch_state, watch_at,
  fingerprint, tenant, method, path, key, note, status, lines, body
)
select encode($1::bytea, 'hex')::uuid, $2::int8::bit(32)::int4, $3::int8, $4::int8, $5::int8, $6::int8::bit(32)::int4,
       $7::int8::int2, $8::int8::int2, $9::int8, $10::int8::int4,
       case when $11::int8 is not null then t.now end, case $12::int8 when 1 then t.now end, case $13::int8 when 1 then t.now end,
       t.now + $14::int8, t.now + $15::int8, t.now + $16::int8,
       t.now + least($15::int8, $16::int8, $17::int8),
       case when $30::boolean then $7::int8::int2 end,
       case when $30::boolean then coalesce(t.now + $14::int8, 9223372036854775807) end,
       $18::bytea, $19::text, $20::text, $21::text, $22::text, $23::text, $24::int8::int4,
       case $25::int8 when 1 then $26::bytea end, case $25::int8 when 1 then $27::bytea end
from t
on conflict (id) do nothing
returning created_at
