-- Locks a record that is at the version ?2, ?3 and due, if no other transaction has locked it: a takeover never waits, because
-- the lock holder may still renew or finish. No row: not now. It is a separate statement, because MariaDB ignores
-- `skip locked` in a derived table.
select r.due_at
from ibid_record r
where r.id = ?1 and r.count = ?2 and r.nonce = ?3
  and r.due_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
for update skip locked
