-- Removes lines of history.
delete e from $rows straight_join ibid_event e force index (primary) on e.seq = w.seq
