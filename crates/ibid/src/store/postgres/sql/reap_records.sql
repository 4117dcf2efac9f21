-- One step of the reaper over records, from the instant $1 on, oldest first: what is past `purge_at` goes, what is only
-- past `expires_at` becomes a tombstone with the empty note $3; of both the bodies go. A row that somebody holds waits
-- for the next time, one that still has a call to the outside to make waits for that, and one with a flag of $4 for a
-- person. Those of $5 are passed over. A strip is a write like any other: whoever read the row before comes too late.
with ripe as materialized (
  select r.id, case when r.bare then r.purge_at else least(r.expires_at, r.purge_at) end as at,
         r.purge_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8 as goes
  from ibid_record r
  where r.purge_at is not null
    and case when r.bare then r.purge_at else least(r.expires_at, r.purge_at) end >= $1
    and case when r.bare then r.purge_at else least(r.expires_at, r.purge_at) end
        <= (extract(epoch from statement_timestamp()) * 1000000)::int8
    and r.flags & $4::int8::int2 = 0
    and (select true from ibid_effect e where e.record = r.id and e.open limit 1) is null
    and r.id <> all ($5)
  order by case when r.bare then r.purge_at else least(r.expires_at, r.purge_at) end
  limit $2
  for update of r skip locked
),
bodies as (
  delete from ibid_body b where b.id = any (array(select id from ripe))
),
stripped as (
  update ibid_record r
     set bare = true, count = count + 1, tenant = '', method = '', path = '', key = '', note = $3
   where r.id = any (array(select id from ripe where not goes))
  returning 1
),
removed as (
  delete from ibid_record r where r.id = any (array(select id from ripe where goes))
  returning 1
)
select (select count(*) from stripped), (select count(*) from removed), (select max(at) from ripe),
       (select count(*) from ripe)
