-- Counts the effects in the states ?1 and ?2, by the index of states.
select (select count(*) from ibid_effect where state = ?1), (select count(*) from ibid_effect where state = ?2)
