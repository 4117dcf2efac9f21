-- About how many records there are: those that were ordered, and those that are not ordered yet.
select rows + (select coalesce(max(row), 0) from ibid_record) - up_to from ibid_ordered
