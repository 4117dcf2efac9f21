-- Locks the records that are still at their version and that no other transaction has locked. Returns the lease of each.
select r.id, r.count, r.nonce, (select p.lease_us from ibid_policy p where p.digest = r.policy)
from $rows straight_join ibid_record r force index (primary) on r.id = w.id and r.count = w.count and r.nonce = w.nonce
where r.due_at is not null
for update skip locked
