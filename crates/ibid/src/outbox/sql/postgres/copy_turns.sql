-- Adds a turn for each aggregate of the open effects in the JSON array $1 that has none, and moves the sequence behind the
-- numbers that were copied.
with n as (
  insert into ibid_effect_turn (tenant, aggregate)
  select distinct x.tenant, x.aggregate
  from json_to_recordset($1::text::json) x (tenant text, aggregate text, done_at int8)
  where x.aggregate is not null and x.done_at is null
    and not exists (select from ibid_effect_turn t where t.tenant = x.tenant and t.aggregate = x.aggregate)
)
select setval(pg_get_serial_sequence('ibid_effect_call', 'seq'), (select max(c.seq) from ibid_effect_call c))
