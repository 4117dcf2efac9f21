-- After ?1 removals: SQLite gives the number of a removed last row again, and the next record with it is not ordered.
update ibid_ordered set rows = max(rows - ?1, 0), up_to = min(up_to, (select coalesce(max(row), 0) from ibid_record))
