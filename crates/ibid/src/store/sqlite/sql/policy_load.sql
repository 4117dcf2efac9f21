-- The rules with this number.
select data from policy where id = ?1
