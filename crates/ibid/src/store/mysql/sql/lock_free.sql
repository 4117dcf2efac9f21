-- Locks a record if no other transaction has locked it. No row: it is locked, or gone.
select r.nonce from ibid_record r where r.id = ?1 for update skip locked
