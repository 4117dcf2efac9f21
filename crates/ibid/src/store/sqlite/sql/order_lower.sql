-- After a removal: SQLite gives the number of a removed last row again, and the next record with it is not ordered.
update ibid_ordered set up_to = (select coalesce(max(row), 0) from ibid_record)
where up_to > (select coalesce(max(row), 0) from ibid_record)
