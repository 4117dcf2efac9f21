-- Replace records unless somebody has since; for each say whether it was (`done`), and else what stands there. A change
-- without a draft only tells. Rows are locked in the order of their ids before any is written. A takeover counts only if
-- its row is due, and passes over a row that somebody holds. What stands there is from before the wait for a lock, so
-- where it still fits what was expected it is old: ask again.
--
-- What is expected: 0 no row, 1 the version, 2 the version and that it is due, 3 anything. Marks: 0 keeps an instant, 1
-- sets it to now, 2 clears it. A row that is hit is locked, so the insert always meets it and replaces it; written so,
-- it is found by its id whatever the planner believes. Tenant and key are part of the id and never change, but the
-- reaper may have blanked them; under tenant scope the operation may change. In the reaper's order a row only moves to an
-- earlier place, unless it is another generation. What an earlier generation kept goes with it; whoever writes beside a record
-- has its row, so nothing of that moves meanwhile.
with w as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now, t.*
  from unnest(
    $1::bytea[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[], $9::int8[],
    $10::int8[], $11::int8[], $12::int8[], $13::int8[], $14::int8[], $15::int8[], $16::int8[], $17::int8[],
    $18::int8[], $19::int8[], $20::int8[], $21::bytea[], $22::text[], $23::text[], $24::text[], $25::text[],
    $26::bytea[], $27::bool[], $28::bool[], $29::int8[]
  ) with ordinality as t (
    id, expect, was_count, was_nonce, count, nonce, birth, owner, attempt,
    lease_us, state, flags, policy, point, created, ran, completed,
    due_us, expires_us, purge_us, fingerprint, tenant, method, path, key,
    note, draft, clears, keep_us, place
  )
),
held as materialized (
  select w.id, r.birth, r.created_at, r.ran_at, r.completed_at, r.reap_at
  from (select * from w where expect = 1 order by id) w
  cross join lateral (
    select x.birth, x.created_at, x.ran_at, x.completed_at, x.reap_at
    from ibid_record x
    where x.id = w.id and x.count = w.was_count and x.nonce = w.was_nonce
    limit 1
    for no key update
  ) r
),
taken as materialized (
  select w.id, r.birth, r.created_at, r.ran_at, r.completed_at, r.reap_at
  from (select * from w where expect = 2 order by id) w
  cross join lateral (
    select x.birth, x.created_at, x.ran_at, x.completed_at, x.reap_at
    from ibid_record x
    where x.id = w.id and x.count = w.was_count and x.nonce = w.was_nonce and x.due_at <= w.now
    limit 1
    for no key update skip locked
  ) r
),
hit as materialized (
  select * from held
  union all
  select * from taken
),
written as (
  insert into ibid_record as r (
    id, count, nonce, birth, owner, attempt, lease_us, state, flags, policy, point,
    created_at, ran_at, completed_at, due_at, expires_at, purge_at, reap_at, watch_state, watch_at,
    fingerprint, tenant, method, path, key, note
  )
  select w.id, w.count, w.nonce, w.birth, w.owner, w.attempt, w.lease_us, w.state::int2, w.flags::int2, w.policy,
         w.point::int4,
         case w.created when 0 then hit.created_at else w.now end,
         case w.ran when 0 then hit.ran_at when 1 then w.now end,
         case w.completed when 0 then hit.completed_at when 1 then w.now end,
         case when w.due_us is not null then w.now + least(w.due_us, 9223372036854775807 - w.now) end,
         case when w.expires_us is not null then w.now + least(w.expires_us, 9223372036854775807 - w.now) end,
         case when w.purge_us is not null then w.now + least(w.purge_us, 9223372036854775807 - w.now) end,
         case w.created
           when 0 then least(
             hit.reap_at,
             case when w.purge_us is not null then w.now + least(w.expires_us, w.purge_us, 9223372036854775807 - w.now) end
           )
           else w.now + least(w.keep_us, w.expires_us, w.purge_us, 9223372036854775807 - w.now)
         end,
         case when w.due_us is not null then w.state::int2 end,
         case when w.due_us is not null then w.now + least(w.due_us, 9223372036854775807 - w.now) end,
         w.fingerprint, w.tenant, w.method, w.path, w.key, w.note
  from w join hit on hit.id = w.id
  where w.draft
  on conflict (id) do update set
    count = excluded.count, nonce = excluded.nonce, birth = excluded.birth, owner = excluded.owner,
    attempt = excluded.attempt, lease_us = excluded.lease_us, state = excluded.state, flags = excluded.flags,
    policy = excluded.policy, point = excluded.point, created_at = excluded.created_at, ran_at = excluded.ran_at,
    completed_at = excluded.completed_at, due_at = excluded.due_at, expires_at = excluded.expires_at,
    purge_at = excluded.purge_at, reap_at = excluded.reap_at, watch_state = excluded.watch_state,
    watch_at = excluded.watch_at, fingerprint = excluded.fingerprint, tenant = excluded.tenant,
    method = excluded.method, path = excluded.path, key = excluded.key, note = excluded.note, bare = false
  returning r.id, r.created_at
),
done as materialized (
  select id from written
  union all
  select w.id from w join hit on hit.id = w.id where not w.draft
  union all
  select w.id from w where w.expect = 3
  union all
  select w.id from w where w.expect = 0 and (select true from ibid_record x where x.id = w.id) is null
),
old as materialized (
  select b.place
  from w
  join hit on hit.id = w.id
  cross join lateral (
    select x.ctid as place, x.kind
    from ibid_body x
    where x.born_at = hit.created_at and x.birth = hit.birth
    offset 0
  ) b
  where w.draft
    and (w.clears or w.birth <> hit.birth or w.created <> 0)
    and (
      select true
      from unnest($30::bytea[], $31::int8[]) as k (id, kind)
      where k.id = w.id and k.kind = b.kind and w.birth = hit.birth and w.created = 0
      limit 1
    ) is null
),
cleared as (
  delete from ibid_body b where b.ctid = any (array(select place from old))
),
kept as (
  insert into ibid_body (born_at, birth, kind, data)
  select written.created_at, w.birth, b.kind::int4, b.data
  from unnest($30::bytea[], $31::int8[], $32::bytea[]) as b (id, kind, data)
  join w on w.id = b.id
  join written on written.id = b.id
  on conflict (born_at, birth, kind) do update set data = excluded.data
),
told as (
  insert into ibid_event (id, at, what, detail)
  select e.id, w.now, e.what::int2, e.detail
  from unnest($33::bytea[], $34::int8[], $35::text[]) with ordinality as e (id, what, detail, line)
  join w on w.id = e.id
  join done on done.id = e.id
  order by e.line
)
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note,
       (select b.data from ibid_body b where b.born_at = r.created_at and b.birth = r.birth and b.kind = 1),
       w.now, w.place, done.id is not null as done
from w
left join done on done.id = w.id
left join lateral (
  select * from ibid_record x where x.id = w.id and done.id is null limit 1
) r on true
