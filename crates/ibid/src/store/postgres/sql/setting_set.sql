-- Compare and set: the value is replaced only where it is still the one that the writer read. A second writer waits for
-- the first one's commit and then compares with what that left.
update ibid_meta set value = $3 where name = $1 and value = $2 returning value
