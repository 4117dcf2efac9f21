-- Rows up to ?1 are ordered.
update ibid_ordered set up_to = ?1
