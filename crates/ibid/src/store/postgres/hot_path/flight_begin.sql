-- The hot path where only begins wait and none of their ids is expected to be taken: flight.sql without finishes and without a
-- look for taken ids. A taken id fails the statement with a unique violation, and the caller sends the begins by flight.sql.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
  where current_setting('ibid.settings', true) = 'on'
),
begun as (
  insert into ibid_record (
    id, birth, created_at, policy, reap_at, ran_at, flags, tenant, method, path, key, fingerprint, nonce, due_at, count, state, note
  )
  select w.id, w.nonce, c.now, w.policy, c.now + w.keep_us, c.now, w.flags, w.tenant, w.method, w.path, w.key, w.fingerprint,
         w.nonce, c.now + w.lease_us, 1, 2, w.note
  from clock c, unnest($1::ibid_fresh_row[]) w
  returning ctid as tid
)
select c.now, array(select tid from begun)
from clock c
