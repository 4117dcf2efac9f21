-- The row itself.
delete from ibid_record where row = ?1
