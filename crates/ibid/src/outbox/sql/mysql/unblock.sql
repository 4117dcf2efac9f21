-- Unblocks the effect ?1, which this transaction has locked.
update ibid_effect set blocked = 0 where seq = ?1
