-- The value of one setting.
select value from ibid_meta where name = ?1
