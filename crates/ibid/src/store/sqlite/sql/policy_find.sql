-- The number of a set of rules.
select id from policy where data = ?1
