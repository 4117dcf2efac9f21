-- Returns the instant of the write that made the version ?2, ?3 of the effect ?1.
select e.written_at from ibid_effect e where e.seq = ?1 and e.count = ?2 and e.nonce = ?3
