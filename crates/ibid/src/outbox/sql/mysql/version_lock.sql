-- Locks the effect ?1 at its version ?2, ?3. No row: it has another version by now.
select e.seq from ibid_effect e where e.seq = ?1 and e.count = ?2 and e.nonce = ?3 for update
