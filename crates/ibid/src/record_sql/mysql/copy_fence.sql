-- Reads the setting ?1 and keeps it as it is until this transaction ends.
select m.value from ibid_meta m where m.name = ?1 lock in share mode
