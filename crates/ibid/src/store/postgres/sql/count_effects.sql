-- Counts the effects that are dead letters by their index, at most $1.
select count(*) from (select from ibid_effect where dead_letter and seq > 0 limit $1::int8) x
