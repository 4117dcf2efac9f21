-- Rows up to ?1 are ordered; ?2 of them are new.
update ibid_ordered set up_to = ?1, rows = rows + ?2
