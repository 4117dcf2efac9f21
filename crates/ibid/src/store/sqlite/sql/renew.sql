-- Move a lease on where the version is still (?2, ?3), and nothing else; by the lease of its policy.
update ibid_record
   set (due_at, watch_at) = (select ?4 + p.lease_us, ?4 + p.lease_us from ibid_policy p where p.id = ibid_record.policy)
 where id = ?1 and count = ?2 and nonce = ?3 and due_at is not null
returning due_at
