-- The last row that was ordered, and the last row.
select up_to, (select coalesce(max(row), 0) from ibid_record) from ibid_ordered
