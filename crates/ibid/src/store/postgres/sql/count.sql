-- Records by state, and those among them with a flag of $1.
select state, count(*), count(*) filter (where flags & $1::int8::int2 <> 0) from ibid_record group by state
