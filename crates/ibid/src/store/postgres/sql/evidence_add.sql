-- The first delivery of an event counts. No row back: it is there already; ask for it.
insert into ibid_evidence (source, event, record, owner, as_of, purge_at, open, found)
select $1, $2, $3, $4, t.now - least($5, t.now), t.now + least($6, 9223372036854775807 - t.now), true, $7
from (select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now) t
on conflict (source, event) do nothing
returning seq, source, event, record, owner, as_of, open, found
