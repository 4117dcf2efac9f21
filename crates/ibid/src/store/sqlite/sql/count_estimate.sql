-- About how many records there are: those in the reaper's ranges, and those that are not ordered yet.
select (select total(rows) from ibid_reap_range)
       + (select coalesce(max(row), 0) from ibid_record) - (select up_to from ibid_ordered)
