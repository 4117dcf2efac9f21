-- Records by state, those among them with a flag of $1, and since when the oldest runs.
select state, count(*), count(*) filter (where flags & $1::int8::int2 <> 0), min(coalesce(ran_at, created_at)),
       (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
from ibid_record group by state
