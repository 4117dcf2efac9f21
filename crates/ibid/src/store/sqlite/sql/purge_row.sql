-- The row itself.
delete from record where row = ?1
