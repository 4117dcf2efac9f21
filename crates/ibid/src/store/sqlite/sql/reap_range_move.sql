-- Visit the range from the row ?1 again at ?2.
update ibid_reap_range set at = ?2 where first = ?1
