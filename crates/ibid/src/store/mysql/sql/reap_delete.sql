-- Deletes records.
delete r from $rows straight_join ibid_record r force index (primary) on r.id = w.id and w.goes = 1
