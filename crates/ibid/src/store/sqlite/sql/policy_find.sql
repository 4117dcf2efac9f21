-- The number of a set of rules.
select id from ibid_policy where data = ?1
