-- Replace records unless somebody has since; for each say whether it was (`done`), and else what stands there. A change
-- without a draft only tells. Rows are locked in the order of their ids before any is written. A takeover (`due`) counts
-- only if its row is due, and passes over a row that somebody holds. What stands there is from before the wait for a
-- lock, so where it still fits what was expected it is old: ask again. Marks: 0 keeps an instant, 1 sets it to now,
-- 2 clears it. Tenant and key are part of the id and never change; under tenant scope the operation may.
with s as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now,
         set_config('lock_timeout', $1, true)
),
w as materialized (
  select s.now, t.*
  from s, unnest(
    $2::bytea[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[], $9::int8[], $10::int8[],
    $11::int8[], $12::int8[], $13::int8[], $14::int8[], $15::int8[], $16::int8[], $17::int8[], $18::int8[],
    $19::int8[], $20::int8[], $21::int8[], $22::bytea[], $23::text[], $24::text[], $25::bytea[], $26::bool[],
    $27::bool[]
  ) with ordinality as t (
    id, expect, was_count, was_nonce, count, nonce, birth, owner, attempt,
    lease_us, state, flags, policy, point, created, ran, completed,
    due_us, expires_us, purge_us, fingerprint, method, path, note, draft,
    clears, place
  )
),
held as materialized (
  select r.id
  from w join ibid_record r on r.id = w.id and r.count = w.was_count and r.nonce = w.was_nonce
  where w.expect = 1
  order by r.id
  for no key update of r
),
taken as materialized (
  select r.id
  from w join ibid_record r on r.id = w.id and r.count = w.was_count and r.nonce = w.was_nonce
  where w.expect = 2 and r.due_at <= w.now
  order by r.id
  for no key update of r skip locked
),
hit as materialized (
  select id from held
  union all
  select id from taken
  union all
  select w.id from w where w.expect = 3
  union all
  select w.id from w where w.expect = 0 and not exists (select from ibid_record x where x.id = w.id)
),
written as (
  update ibid_record r set
    count = w.count, nonce = w.nonce, birth = w.birth, owner = w.owner, attempt = w.attempt, lease_us = w.lease_us,
    state = w.state::int2, flags = w.flags::int2, policy = w.policy, point = w.point::int4,
    created_at = case w.created when 0 then r.created_at else w.now end,
    ran_at = case w.ran when 0 then r.ran_at when 1 then w.now end,
    completed_at = case w.completed when 0 then r.completed_at when 1 then w.now end,
    due_at = case when w.due_us is not null then w.now + least(w.due_us, 9223372036854775807 - w.now) end,
    expires_at = case when w.expires_us is not null then w.now + least(w.expires_us, 9223372036854775807 - w.now) end,
    purge_at = case when w.purge_us is not null then w.now + least(w.purge_us, 9223372036854775807 - w.now) end,
    fingerprint = w.fingerprint, method = w.method, path = w.path, note = w.note
  from w join hit on hit.id = w.id
  where w.draft and r.id = w.id and r.count = w.was_count and r.nonce = w.was_nonce
  returning r.id
),
done as materialized (
  select id from written
  union all
  select w.id from w join hit on hit.id = w.id where not w.draft
),
cleared as (
  delete from ibid_body b
  using w join done on done.id = w.id
  where w.clears and b.id = w.id
    and not exists (
      select from unnest($28::bytea[], $29::int8[]) as k (id, kind)
      where k.id = b.id and k.kind = b.kind and b.birth = w.birth
    )
),
kept as (
  insert into ibid_body (id, birth, kind, data)
  select b.id, w.birth, b.kind::int4, b.data
  from unnest($28::bytea[], $29::int8[], $30::bytea[]) as b (id, kind, data)
  join w on w.id = b.id
  join written on written.id = b.id
  on conflict (id, birth, kind) do update set data = excluded.data
),
told as (
  insert into ibid_event (id, at, what, detail)
  select e.id, w.now, e.what::int2, e.detail
  from unnest($31::bytea[], $32::int8[], $33::text[]) with ordinality as e (id, what, detail, line)
  join w on w.id = e.id
  join done on done.id = e.id
  order by e.line
)
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, b.data,
       w.now, w.place, done.id is not null as done
from w
left join done on done.id = w.id
left join ibid_record r on r.id = w.id and done.id is null
left join ibid_body b on b.id = r.id and b.birth = r.birth and b.kind = 1
