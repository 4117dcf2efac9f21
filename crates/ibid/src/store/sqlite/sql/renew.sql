-- Move a lease on where the version still stands, and nothing else. Past the last instant it stays there:
-- an integer that overflows would become a float.
update ibid_record
   set due_at = iif(lease_us > 9223372036854775807 - ?4, 9223372036854775807, ?4 + lease_us)
 where id = ?1 and count = ?2 and nonce = ?3 and due_at is not null
returning due_at
