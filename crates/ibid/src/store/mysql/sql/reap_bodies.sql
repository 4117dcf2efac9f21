-- Deletes the bodies of records whose time is over.
delete b from $rows straight_join ibid_body b force index (primary) on b.born_at = w.born_at and b.birth = w.birth
