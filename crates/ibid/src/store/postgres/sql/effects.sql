-- How many effects are in the states $1 and $2.
select count(*) filter (where state = $1::int8::int2), count(*) filter (where state = $2::int8::int2) from ibid_effect
