-- Begin records where no row stands; for each say whether it was begun (`done`), and else what stands there. Neither
-- means that a row came up meanwhile which this snapshot does not show: ask again. Only ids that the snapshot does not
-- show are inserted, because an insert waits behind any uncommitted write of its id. A replay writes nothing.
with w as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now, t.*
  from unnest(
    $1::bytea[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[], $9::int8[],
    $10::int8[], $11::int8[], $12::int8[], $13::int8[], $14::int8[], $15::int8[], $16::bytea[], $17::text[],
    $18::text[], $19::text[], $20::text[], $21::bytea[], $22::int8[], $23::bool[]
  ) with ordinality as t (
    id, nonce, birth, owner, attempt, lease_us, state, flags, policy,
    point, ran, completed, due_us, expires_us, purge_us, fingerprint, tenant,
    method, path, key, note, keep_us, first, place
  )
),
begun as (
  insert into ibid_record (
    id, count, nonce, birth, owner, attempt, lease_us, state, flags, policy, point,
    created_at, ran_at, completed_at, due_at, expires_at, purge_at, reap_at, watch_state, watch_at,
    fingerprint, tenant, method, path, key, note
  )
  select w.id, 1, w.nonce, w.birth, w.owner, w.attempt, w.lease_us, w.state::int2, w.flags::int2, w.policy, w.point::int4,
         w.now,
         case w.ran when 1 then w.now end,
         case w.completed when 1 then w.now end,
         case when w.due_us is not null then w.now + least(w.due_us, 9223372036854775807 - w.now) end,
         case when w.expires_us is not null then w.now + least(w.expires_us, 9223372036854775807 - w.now) end,
         case when w.purge_us is not null then w.now + least(w.purge_us, 9223372036854775807 - w.now) end,
         w.now + least(w.keep_us, w.expires_us, w.purge_us, 9223372036854775807 - w.now),
         case when not w.first and w.due_us is not null then w.state::int2 end,
         case when not w.first and w.due_us is not null then w.now + least(w.due_us, 9223372036854775807 - w.now) end,
         w.fingerprint, w.tenant, w.method, w.path, w.key, w.note
  from w
  where (select true from ibid_record x where x.id = w.id) is null
  order by w.id
  on conflict (id) do nothing
  returning id, birth, created_at
),
kept as (
  insert into ibid_body (born_at, birth, kind, data)
  select begun.created_at, begun.birth, b.kind::int4, b.data
  from unnest($24::bytea[], $25::int8[], $26::bytea[]) as b (id, kind, data)
  join begun on begun.id = b.id
  on conflict (born_at, birth, kind) do update set data = excluded.data
),
told as (
  insert into ibid_event (id, at, what, detail)
  select e.id, begun.created_at, e.what::int2, e.detail
  from unnest($27::bytea[], $28::int8[], $29::text[]) with ordinality as e (id, what, detail, line)
  join begun on begun.id = e.id
  order by e.line
)
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note,
       (select b.data from ibid_body b where b.born_at = r.created_at and b.birth = r.birth and b.kind = 1),
       w.now, w.place, begun.id is not null as done
from w
left join begun on begun.id = w.id
left join lateral (
  select * from ibid_record x where x.id = w.id and begun.id is null limit 1
) r on true
