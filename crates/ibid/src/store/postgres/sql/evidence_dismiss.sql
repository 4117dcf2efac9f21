-- Marks evidence as dismissed: it cannot be used any more, but its events stay known.
update ibid_evidence e
set open = false
from unnest($1::text[], $2::text[]) as n (source, event)
where e.source = n.source and e.event = n.event
