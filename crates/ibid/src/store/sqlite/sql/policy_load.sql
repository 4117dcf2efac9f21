-- The policy with this number.
select data from ibid_policy where id = ?1
