-- The hot path, begins and replacements together: a statement has a price of its own, most of a small batch's, and so has
-- a flush. It takes what is plain: a begin that keeps nothing beside it, and a replacement at the version that was read
-- which keeps at most one thing. For each it says whether it was done; for a begin that was not, also what stands there.
-- What else it did not do is asked of begin.sql or commit.sql.
--
-- begin.sql says why only ids that the snapshot does not show are inserted. Both kinds are written in the order of the
-- arrays, which is that of the ids. A row to be replaced is found by its id and written where it was found: whatever the
-- planner believes of the table's size, it can only go through the index; and a row that somebody has written since is
-- left alone: the version is compared with the row that is written, for servers from before November 2025 do not look at
-- a place again after they waited. Tenant and key stay as they are: what is written over a tombstone goes by commit.sql, which writes them
-- again.
--
-- On a session without our settings (a pooler gave us another) it does nothing.
with w as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now, t.*
  from unnest($1::ibid_begin_row[]) t
  where current_setting('ibid.settings', true) = 'on'
),
begun as (
  insert into ibid_record (
    id, count, nonce, birth, owner, attempt, lease_us, state, flags, policy, point,
    created_at, ran_at, completed_at, due_at, expires_at, purge_at,
    fingerprint, tenant, method, path, key, note
  )
  select w.id, 1, w.nonce, w.birth, w.owner, w.attempt, w.lease_us, w.state, w.flags, w.policy, w.point,
         w.now,
         case w.ran when 1 then w.now end,
         case w.completed when 1 then w.now end,
         case when w.due_us is not null then w.now + least(w.due_us, 9223372036854775807 - w.now) end,
         case when w.expires_us is not null then w.now + least(w.expires_us, 9223372036854775807 - w.now) end,
         case when w.purge_us is not null then w.now + least(w.purge_us, 9223372036854775807 - w.now) end,
         w.fingerprint, w.tenant, w.method, w.path, w.key, w.note
  from w
  where (select true from ibid_record x where x.id = w.id) is null
  on conflict (id) do nothing
  returning id
),
done as (
  update ibid_record r set
    count = v.was_count + 1, nonce = v.nonce, birth = v.birth, owner = v.owner, attempt = v.attempt,
    lease_us = v.lease_us, state = v.state, flags = v.flags, policy = v.policy, point = v.point,
    created_at = case v.created when 0 then r.created_at else v.now end,
    ran_at = case v.ran when 0 then r.ran_at when 1 then v.now end,
    completed_at = case v.completed when 0 then r.completed_at when 1 then v.now end,
    due_at = case when v.due_us is not null then v.now + least(v.due_us, 9223372036854775807 - v.now) end,
    expires_at = case when v.expires_us is not null then v.now + least(v.expires_us, 9223372036854775807 - v.now) end,
    purge_at = case when v.purge_us is not null then v.now + least(v.purge_us, 9223372036854775807 - v.now) end,
    fingerprint = v.fingerprint, method = v.method, path = v.path, note = v.note, bare = false
  from (
    select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now, t.*,
           (
             select x.ctid
             from ibid_record x
             where x.id = t.id and x.count = t.was_count and x.nonce = t.was_nonce and not x.bare
           ) as found
    from unnest($2::ibid_replace_row[]) t
    where current_setting('ibid.settings', true) = 'on'
  ) v
  where r.ctid = v.found and r.count = v.was_count and r.nonce = v.was_nonce and not r.bare
  returning r.id, r.birth, v.kind, v.data, v.now
),
kept as (
  insert into ibid_body (id, birth, kind, data)
  select id, birth, kind, data from done where kind is not null
  on conflict (id, birth, kind) do update set data = excluded.data
)
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note,
       (select b.data from ibid_body b where b.id = r.id and b.birth = r.birth and b.kind = 1),
       said.now, said.id, said.done
from (
  select now, id, id in (select id from begun) as done from w
  union all
  select now, id, true from done
) said
left join lateral (
  select * from ibid_record x where x.id = said.id and not said.done limit 1
) r on true
