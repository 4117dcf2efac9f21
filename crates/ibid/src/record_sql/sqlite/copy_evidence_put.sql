-- Store the evidence of the JSON array ?1, in its order. Bytes are hexadecimal digits. Of an event that is known
-- only these columns may have changed.
insert into ibid_evidence (source, event, record, owner, as_of, purge_at, open, found)
select v ->> 'source', v ->> 'event', unhex(v ->> 'record'), v ->> 'owner', v ->> 'as_of', v ->> 'purge_at', v ->> 'open',
       unhex(v ->> 'found')
from (select x.value as v from json_each(?1) x)
where true
order by v ->> 'n'
on conflict (source, event) do update set (open, purge_at) = (excluded.open, excluded.purge_at)
