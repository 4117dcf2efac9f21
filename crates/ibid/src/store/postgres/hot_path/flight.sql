-- The hot path: begins of new records ($1) and finishes ($2) in one statement, because each statement and each
-- flush has a fixed cost. Returns one row: now, the row locations of the begun records in the order of $1, the nonces of the
-- finished ones, and the stored records whose ids are taken. A change that is in none of these goes by the plain path.
--
-- Of the ids in $3, only those that the snapshot does not show are inserted. A caller that expects no taken id sends none: then
-- a taken one fails the whole statement with a unique violation, and the caller sends it again with all ids. If another process
-- inserts an id at the same moment, the statement fails in the same way; the caller takes that id out and sends the rest again.
-- $1 is in the order of ids, so that two flights never wait for each other. $2 is in the order of row locations: only the
-- process that began a record sends its finish by location, so no two flights finish the same row.
--
-- A finish goes to the row location that its begin returned, so it uses no index. It also touches none, because reap_at, policy
-- and watch_* keep their values, and flags keep theirs unless the response is not retained. So it can stay in its page. The location may hold another row by now, so id, count
-- and nonce are compared with the row that is written: servers from before November 2025 do not check a ctid again after they
-- waited for a row lock. `is not distinct from` keeps the planner from an index on the id: a plan that was made while the table
-- was small would read all rows through it forever.
--
-- In a session without the settings of the hot path (a pooler gave us another one) `clock` is empty. Then nothing is inserted,
-- no count is equal, and no row is returned.
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
  returning r.nonce
)
select c.now, array(select tid from begun), array(select nonce from done), array(select stored from taken)
from clock c
