-- How many effects would go now.
select 0::int8, count(*)
from ibid_effect e
where not e.open
  and coalesce(e.done_at, e.created_at) <= (extract(epoch from statement_timestamp()) * 1000000)::int8 - $1::int8
  and (select true from ibid_record r where r.id = e.record and r.birth = e.birth limit 1) is null
