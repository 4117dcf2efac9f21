-- Strips records to tombstones. It counts as a write, so a writer that read the row before loses.
update $rows straight_join ibid_record r force index (primary) on r.id = w.id and w.goes = 0
set r.flags = r.flags | 128, r.count = (r.count + 1) & 4294967295, r.tenant = '', r.method = '', r.path = '', r.key = '', r.note = null,
    r.status = null, r.lines = null, r.body = null, r.sealed_by = null, r.reap_at = r.purge_at
