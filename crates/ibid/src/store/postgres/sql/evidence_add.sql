-- Stores the evidence of an event. No row: the event is stored already. Where $8 is set, the commit waits for the disk and for
-- synchronous standbys, whatever the session is set to: the provider does not send the event again.
with t as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now,
         case when $8::boolean and current_setting('synchronous_commit') not in ('on', 'remote_apply')
              then set_config('synchronous_commit', 'on', true) end as raised
)
insert into ibid_evidence (source, event, record, owner, as_of, purge_at, open, found)
select $1::text, $2::text, $3::uuid, $4::int8, t.now - least($5::int8, t.now), t.now + $6::int8, true, $7::bytea
from t
on conflict (source, event) do nothing
returning seq, source, event, record, owner, as_of, open, found
