-- Locks the effect ?1 if it is still blocked. No row: another transaction has locked it, and the turn stays for the next look.
-- Two looks that wait for each other's effects would deadlock.
select x.seq
from ibid_effect x force index (primary)
where x.seq = ?1 and x.blocked = 1 and x.done_at is null
for update skip locked
