-- Enqueues an effect of an aggregate, first step: locks the aggregate ?2 of the tenant ?1 until the commit, so that its effects
-- get their numbers in the order of their commits. Without it: T1 draws 7; T2 draws 8 and commits; a worker calls 8; T1 commits.
-- A lock of the session (get_lock) would outlive the transaction. Aggregates share 4,096 rows, so the table does not grow.
insert into ibid_effect_lock (slot) values (crc32(concat(?1, x'00', ?2)) % 4096)
on duplicate key update slot = slot
