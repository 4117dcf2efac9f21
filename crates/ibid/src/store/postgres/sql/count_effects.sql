-- Counts the effects that are dead letters, by their index: there are few.
select count(*) from ibid_effect where dead_letter and seq > 0
