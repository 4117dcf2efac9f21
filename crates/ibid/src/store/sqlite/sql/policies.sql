-- Sets of rules, the newest first, as many as are asked for.
select id, data from ibid_policy order by id desc limit ?1
