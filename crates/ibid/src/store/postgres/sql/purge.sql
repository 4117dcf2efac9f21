-- Remove rows past their time, oldest first, with all that is kept beside them. A row that somebody holds waits for the
-- next time, and one that still has a call to the outside to make waits for that.
with gone as materialized (
  select r.id
  from ibid_record r
  where r.purge_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8
    and (select true from ibid_effect e where e.record = r.id and e.open limit 1) is null
  order by r.purge_at
  limit $1
  for update of r skip locked
),
bodies as (
  delete from ibid_body b where b.id = any (array(select id from gone))
)
delete from ibid_record r where r.id = any (array(select id from gone))
returning 1
