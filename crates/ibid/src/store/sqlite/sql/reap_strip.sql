-- Strip one row to a tombstone: id, fingerprint, state and instants stay.
update ibid_record
   set flags = flags | 128, count = count + 1, tenant = '', method = '', path = '', key = '', note = null, status = null,
       lines = null, sealed_by = null, body = null, reap_at = iif(reap_at is null, null, purge_at)
 where row = ?1
returning id
