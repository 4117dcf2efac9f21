-- Visit the range from the row ?1 again at ?2; ?3 records are left in it.
update ibid_reap_range set at = ?2, rows = ?3 where first = ?1
