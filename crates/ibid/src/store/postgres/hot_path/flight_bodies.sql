-- The hot path where at least one response is too large for its row: flight.sql, and the bodies of those responses. The first
-- finish of a generation finds no body of its kind.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
  where current_setting('ibid.settings', true) = 'on'
),
taken as materialized (
  select r.id, row(r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy,
         r.point, r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
         r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, r.status, r.lines,
         case when r.lines is not null or r.sealed_by is not null then coalesce(r.body, (
           select b.data from ibid_body b where b.born_at = r.created_at and b.birth = r.birth and b.kind = 1
         )) end,
         r.sealed_by) as stored
  from ibid_record r
  where r.id = any ($3::uuid[])
),
begun as (
  insert into ibid_record (
    id, birth, created_at, policy, reap_at, ran_at, flags, tenant, method, path, key, fingerprint, nonce, due_at, count, state, note
  )
  select w.id, w.nonce, c.now, w.policy, c.now + w.keep_us, c.now, w.flags, w.tenant, w.method, w.path, w.key, w.fingerprint,
         w.nonce, c.now + w.lease_us, 1, 2, w.note
  from clock c, unnest($1::ibid_fresh_row[]) w
  where w.id <> all (array(select id from taken))
  returning ctid as tid
),
done as (
  update ibid_record r set
    nonce = v.nonce, due_at = null, completed_at = (select now from clock),
    expires_at = (select now from clock) + v.expires_us, purge_at = (select now from clock) + v.purge_us,
    watch_at = null, count = 2, status = v.status, state = v.state, flags = v.flags, watch_state = null,
    note = v.note, lines = v.lines, body = v.body
  from unnest($2::ibid_finish_row[]) v
  where r.ctid = v.tid and r.id is not distinct from v.id and r.count = (select 1 from clock) and r.nonce = v.was_nonce
  returning r.nonce, r.created_at, r.birth, v.apart
),
bodies as (
  insert into ibid_body (born_at, birth, kind, data)
  select created_at, birth, 1, apart from done where apart is not null
)
select c.now, array(select tid from begun), array(select nonce from done), array(select stored from taken)
from clock c
