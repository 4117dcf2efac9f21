-- Compare and set: the value is replaced only where it is still the one that the writer read. A second writer waits for
-- the first one's commit and then compares with what that left. Returns the value that is there.
start transaction;
update ibid_meta set value = ?2 where name = ?1 and value = ?3;
select value from ibid_meta where name = ?1;
commit
