-- The hot path: fresh records ($1, their ids $3) and finishes ($2) together, for a statement has a price of its own, most of
-- a small batch's, and so has a flush. It says in one row where those were put that it began, in the order in which they were
-- sent; which it finished, by their nonces; and what stands where nothing was begun. What it did not do is asked of begin.sql
-- or commit.sql.
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
-- On a session without our settings (a pooler gave us another) there is no clock, and so nothing to begin at and no count to
-- compare: it does nothing. A finish asks the clock in its expressions, for a table that is joined to an update is carried
-- through it row by row.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
  where current_setting('ibid.settings', true) = 'on'
),
there as materialized (
  select r.id, row(r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note,
       (select b.data from ibid_body b where b.born_at = r.created_at and b.birth = r.birth and b.kind = 1)) as stands
  from ibid_record r
  where r.id = any ($3::bytea[])
),
begun as (
  insert into ibid_record (
    id, count, nonce, birth, owner, attempt, lease_us, state, flags, policy, point,
    created_at, ran_at, due_at, reap_at,
    fingerprint, tenant, method, path, key, note
  )
  select w.id, 1, w.nonce, w.nonce, w.nonce, 1, w.lease_us, w.state, w.flags, w.policy, 0,
         c.now, c.now, c.now + w.lease_us, c.now + w.keep_us,
         w.fingerprint, w.tenant, w.method, w.path, w.key, w.note
  from clock c, unnest($1::ibid_fresh_row[]) w
  where w.id <> all (array(select id from there))
  returning ctid as place
),
done as (
  update ibid_record r set
    count = 2, nonce = v.nonce, state = v.state, flags = v.flags, note = v.note,
    completed_at = (select now from clock), due_at = null,
    expires_at = (select now from clock) + v.expires_us, purge_at = (select now from clock) + v.purge_us,
    watch_state = null, watch_at = null
  from unnest($2::ibid_finish_row[]) v
  where r.ctid = v.place and r.id is not distinct from v.id and r.count = (select 1 from clock) and r.nonce = v.was_nonce
    and not r.bare
  returning r.nonce, r.created_at, r.birth, v.kind, v.data
),
kept as (
  insert into ibid_body (born_at, birth, kind, data)
  select created_at, birth, kind, data from done where kind is not null
)
select c.now, array(select place from begun), array(select nonce from done), array(select stands from there)
from clock c
