-- Adds a turn for each aggregate of the open effects in the JSON array ?1 that has none. MySQL itself gives new effects numbers
-- behind those that were copied.
insert into ibid_effect_turn (tenant, aggregate)
select distinct cast(x.tenant as binary), cast(x.aggregate as binary)
from json_table(convert(?1 using utf8mb4), '$[*]' columns (
  tenant varchar(255) path '$.tenant', aggregate varchar(512) path '$.aggregate', done_at bigint path '$.done_at'
)) x
where x.aggregate is not null and x.done_at is null
  and not exists (select 1 from ibid_effect_turn t where t.tenant = x.tenant and t.aggregate = x.aggregate)
