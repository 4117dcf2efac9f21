-- Sets of rules, as many as are asked for.
select digest, data from ibid_policy limit ?1
