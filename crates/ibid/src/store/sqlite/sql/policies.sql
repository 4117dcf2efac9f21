-- Policies, the newest first, at most ?1.
select id, data from ibid_policy order by id desc limit ?1
