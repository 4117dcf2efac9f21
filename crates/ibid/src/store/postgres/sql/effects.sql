-- Counts the effects in the states $1 and $2, by the index of states.
select (select count(*) from ibid_effect where state = $1::int8::int2), (select count(*) from ibid_effect where state = $2::int8::int2)
