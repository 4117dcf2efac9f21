-- What stays of a row is a tombstone: id, fingerprint, state and instants.
update ibid_record set bare = 1, count = count + 1, tenant = '', method = '', path = '', key = '', note = ?2 where row = ?1
