-- Deletes the locked evidence.
delete e from $rows straight_join ibid_evidence e force index (primary) on e.seq = w.seq
