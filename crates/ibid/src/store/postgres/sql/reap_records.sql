-- One step of the reaper over records, from the instant $1 on, oldest first: what is past `purge_at` goes, what is only
-- past `expires_at` becomes a tombstone with the empty note $3; of both the bodies go. A row that somebody holds waits
-- for the next time, one that still has a call to the outside to make waits for that, and one with a flag of $4 for a
-- person. Those of $5 are passed over. A strip is a write like any other: whoever read the row before comes too late.
--
-- What somebody wrote since this statement began is not seen here, so a row that changed meanwhile waits for the next time, too:
-- what was kept beside it would stay for ever.
--
-- `reap_at` was set when the row was begun. One that was finished later than that has a later place, and one that is not
-- finished is looked at again in an hour; should it not have been found by walk.sql, it is now.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
),
come as materialized (
  select r.id, r.created_at, r.birth, r.reap_at as at, r.purge_at <= (select now from clock) as goes,
         r.purge_at is null
           or case when r.bare then r.purge_at else least(r.expires_at, r.purge_at) end > (select now from clock) as early
  from ibid_record r
  where r.reap_at >= $1
    and r.reap_at <= (select now from clock)
    and r.id <> all ($5)
    and (select x.nonce from ibid_record x where x.id = r.id) = r.nonce
    and (
      r.purge_at is null
      or case when r.bare then r.purge_at else least(r.expires_at, r.purge_at) end > (select now from clock)
      or r.flags & $4::int8::int2 = 0
      and (
        select true from ibid_effect_call c
        where c.record = r.id and (select e.done_at is null from ibid_effect e where e.seq = c.seq)
        limit 1
      ) is null
    )
  order by r.reap_at
  limit $2
  for update of r skip locked
),
beside as materialized (
  select b.place
  from (select * from come where not early) c
  cross join lateral (
    select x.ctid as place from ibid_body x where x.born_at = c.created_at and x.birth = c.birth offset 0
  ) b
),
bodies as (
  delete from ibid_body b where b.ctid = any (array(select place from beside))
),
payloads as (
  -- Payload and result of its effects are as personal as the response, so they go with it. All of these effects have ended.
  update ibid_effect_call c set payload = null, result = null
   where c.record = any (array(select id from come where not early))
     and (c.payload is not null or c.result is not null)
     and (select e.done_at is not null from ibid_effect e where e.seq = c.seq)
),
put_off as (
  update ibid_record r
     set reap_at = coalesce(
           case when r.purge_at is not null then case when r.bare then r.purge_at else least(r.expires_at, r.purge_at) end end,
           (select now from clock) + 3600000000
         ),
         watch_state = case when r.due_at is not null then r.state end,
         watch_at = r.due_at
   where r.id = any (array(select id from come where early))
),
stripped as (
  update ibid_record r
     set bare = true, count = count + 1, tenant = '', method = '', path = '', key = '', note = $3, reap_at = r.purge_at,
         watch_state = null, watch_at = null
   where r.id = any (array(select id from come where not early and not goes))
  returning 1
),
removed as (
  delete from ibid_record r where r.id = any (array(select id from come where not early and goes))
  returning 1
)
select (select count(*) from stripped), (select count(*) from removed), (select max(at) from come),
       (select count(*) from come)
