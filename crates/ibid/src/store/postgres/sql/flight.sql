-- The hot path: fresh records ($1, their ids $3) and finishes ($2) together, for a statement has a price of its own, most of
-- a small batch's, and so has a flush. It says in one row which were begun and where they were put, which were finished,
-- and what stands where nothing was begun. What it did not do is asked of begin.sql or commit.sql.
--
-- begin.sql says why only ids that the snapshot does not show are inserted. Should another process insert one of them at the
-- same moment, all of this fails and is sent again by those two. Both kinds are written in the order of the arrays, which is
-- that of the ids.
--
-- A row is finished where its begin was told that it was put: no index is asked, and none is touched, for a finish leaves
-- the orders alone. Whatever stands there by now, it is written only if it is the version that was begun: compared with
-- the row that is written, for servers from before November 2025 do not look at a place again after they waited. The id
-- is compared so that no index has a say in it: of a table that was small when the plan was made all rows would be read by
-- their ids, for ever. The first finish of a generation finds nothing kept beside it.
--
-- On a session without our settings (a pooler gave us another) it does nothing.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
),
there as materialized (
  select r.id, row(r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note,
       (select b.data from ibid_body b where b.id = r.id and b.birth = r.birth and b.kind = 1),
       (select now from clock)) as stands
  from ibid_record r
  where r.id = any ($3::bytea[])
),
begun as (
  insert into ibid_record (
    id, count, nonce, birth, owner, attempt, lease_us, state, flags, policy, point,
    created_at, ran_at, due_at, first_due, reap_at,
    fingerprint, tenant, method, path, key, note
  )
  select w.id, 1, w.nonce, w.nonce, w.nonce, 1, w.lease_us, w.state, w.flags, w.policy, 0,
         (select now from clock), (select now from clock), (select now from clock) + w.lease_us,
         (select now from clock) + w.lease_us, (select now from clock) + w.keep_us,
         w.fingerprint, w.tenant, w.method, w.path, w.key, w.note
  from unnest($1::ibid_fresh_row[]) w
  where current_setting('ibid.settings', true) = 'on' and w.id not in (select id from there)
  returning id, ctid as place
),
done as (
  update ibid_record r set
    count = 2, nonce = v.nonce, state = v.state, flags = v.flags, note = v.note,
    completed_at = (select now from clock), due_at = null,
    expires_at = (select now from clock) + v.expires_us, purge_at = (select now from clock) + v.purge_us,
    reap_at = least(r.reap_at, (select now from clock) + v.expires_us, (select now from clock) + v.purge_us),
    watch_state = null, watch_at = null
  from unnest($2::ibid_finish_row[]) v
  where current_setting('ibid.settings', true) = 'on'
    and r.ctid = v.place and r.id is not distinct from v.id and r.count = 1 and r.nonce = v.was_nonce and not r.bare
  returning r.id, r.birth, v.kind, v.data
),
kept as (
  insert into ibid_body (id, birth, kind, data)
  select id, birth, kind, data from done where kind is not null
)
select (select now from clock), array(select id from begun), array(select place from begun), array(select id from done),
       array(select stands from there)
where current_setting('ibid.settings', true) = 'on'
