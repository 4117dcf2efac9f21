-- The common case of commit.sql: replace records at the version that was read, each with at most one thing kept beside it,
-- and say for which it was done. Whatever is missing from the answer is asked of commit.sql, which also tells what stands
-- there. It has a small plan, because what a batch costs is for the most part the price of its statement.
--
-- Tenant and key stay as they are: what is written over a tombstone goes by commit.sql, which writes them again. Rows are
-- met in the order of the arrays, which is that of the ids. Marks: 0 keeps an instant, 1 sets it to now, 2 clears it.
with done as (
  update ibid_record r set
    count = w.count, nonce = w.nonce, birth = w.birth, owner = w.owner, attempt = w.attempt, lease_us = w.lease_us,
    state = w.state::int2, flags = w.flags::int2, policy = w.policy, point = w.point::int4,
    created_at = case w.created when 0 then r.created_at else w.now end,
    ran_at = case w.ran when 0 then r.ran_at when 1 then w.now end,
    completed_at = case w.completed when 0 then r.completed_at when 1 then w.now end,
    due_at = case when w.due_us is not null then w.now + least(w.due_us, 9223372036854775807 - w.now) end,
    expires_at = case when w.expires_us is not null then w.now + least(w.expires_us, 9223372036854775807 - w.now) end,
    purge_at = case when w.purge_us is not null then w.now + least(w.purge_us, 9223372036854775807 - w.now) end,
    fingerprint = w.fingerprint, method = w.method, path = w.path, note = w.note, bare = false
  from (
    select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now, t.*
    from unnest(
      $1::bytea[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[], $9::int8[],
      $10::int8[], $11::int8[], $12::int8[], $13::int8[], $14::int8[], $15::int8[], $16::int8[], $17::int8[],
      $18::int8[], $19::int8[], $20::bytea[], $21::text[], $22::text[], $23::bytea[], $24::int8[], $25::bytea[]
    ) with ordinality as t (
      id, was_count, was_nonce, count, nonce, birth, owner, attempt, lease_us,
      state, flags, policy, point, created, ran, completed, due_us,
      expires_us, purge_us, fingerprint, method, path, note, kind, data, place
    )
  ) w
  where r.id = w.id and r.count = w.was_count and r.nonce = w.was_nonce and not r.bare
  returning r.id, r.birth, w.kind, w.data, w.now, w.place
),
kept as (
  insert into ibid_body (id, birth, kind, data)
  select id, birth, kind::int4, data from done where kind is not null
  on conflict (id, birth, kind) do update set data = excluded.data
)
select now, place from done
