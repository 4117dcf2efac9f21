-- Stores the evidence of an event. No row: the event is stored already.
insert into ibid_evidence (source, event, record, owner, as_of, purge_at, open, found)
select $1::text, $2::text, $3::uuid, $4::int8, t.now - least($5::int8, t.now), t.now + $6::int8, true, $7::bytea
from (select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now) t
on conflict (source, event) do nothing
returning seq, source, event, record, owner, as_of, open, found
