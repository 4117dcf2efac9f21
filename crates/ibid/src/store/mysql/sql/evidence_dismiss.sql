-- Marks evidence as dismissed: it cannot be used any more, but its events stay known.
update $rows straight_join ibid_evidence e force index (ibid_evidence_once) on e.source = w.source and e.event = w.event
set e.open = 0
