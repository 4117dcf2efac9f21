-- Stores the evidence of the JSON array $1, in its order. Bytes are hexadecimal digits. Of an event that is known
-- only these columns may have changed.
insert into ibid_evidence (source, event, record, owner, as_of, purge_at, open, found)
select x.source, x.event, x.record, x.owner, x.as_of, x.purge_at, x.open, decode(x.found, 'hex')
from json_to_recordset($1::text::json) x (
  n int8, source text, event text, record uuid, owner int8, as_of int8, purge_at int8, open boolean, found text
)
order by x.n
on conflict (source, event) do update set (open, purge_at) = (excluded.open, excluded.purge_at)
