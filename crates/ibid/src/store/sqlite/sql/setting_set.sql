-- Compare and set: the value is replaced only where it is still the one that the writer read.
update ibid_meta set value = ?3 where name = ?1 and value = ?2
