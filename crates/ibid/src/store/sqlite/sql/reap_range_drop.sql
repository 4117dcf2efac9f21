-- No record is left in the range from the row ?1.
delete from ibid_reap_range where first = ?1
