-- Returns the due instants of the records that are still at their version, locked or not.
select r.id, r.count, r.nonce, r.due_at
from $rows straight_join ibid_record r force index (primary) on r.id = w.id and r.count = w.count and r.nonce = w.nonce
where r.due_at is not null
