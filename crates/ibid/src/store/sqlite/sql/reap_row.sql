-- Delete one row.
delete from ibid_record where row = ?1
returning id
