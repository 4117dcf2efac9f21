-- Evidence is used up in the transaction of the change that it led to: only where that change is what stands now.
update ibid_evidence e
set open = false, purge_at = (extract(epoch from statement_timestamp()) * 1000000)::int8 + $6
from unnest($1::bytea[], $2::int8[], $3::int8[], $4::text[], $5::text[]) as w (id, count, nonce, source, event)
join ibid_record r on r.id = w.id and r.count = w.count and r.nonce = w.nonce
where e.source = w.source and e.event = w.event
