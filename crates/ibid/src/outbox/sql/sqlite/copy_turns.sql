-- Adds a turn for each aggregate of the open effects in the JSON array ?1 that has none. SQLite itself gives new effects
-- numbers behind those that were copied.
insert into ibid_effect_turn (tenant, aggregate)
select distinct v ->> 'tenant', v ->> 'aggregate'
from (select x.value as v from json_each(?1) x)
where v ->> 'aggregate' is not null and v ->> 'done_at' is null
  and not exists (select 1 from ibid_effect_turn t where t.tenant = v ->> 'tenant' and t.aggregate = v ->> 'aggregate')
