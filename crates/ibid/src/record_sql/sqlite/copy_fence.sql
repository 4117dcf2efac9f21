-- Read the setting ?1. The transaction has the write lock already, so it stays as it is.
select m.value from ibid_meta m where m.name = ?1
