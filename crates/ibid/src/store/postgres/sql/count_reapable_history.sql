-- How many lines of history would go now.
select 0::int8, count(*)
from ibid_event e
where e.at <= (extract(epoch from statement_timestamp()) * 1000000)::int8 - $1::int8
  and (select true from ibid_record r where r.id = e.id limit 1) is null
