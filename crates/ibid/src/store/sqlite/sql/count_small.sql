-- How many of the first ?1 + 1 records are in state ?2, and how many of them there are. If there are more than ?1, it is no count.
select count(*) filter (where state = ?2), count(*) from (select state from ibid_record limit ?1 + 1)
