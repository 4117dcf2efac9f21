-- Stores the calls of copied effects from the JSON array ?1. Bytes are hexadecimal digits. Of a call that is stored only the
-- result may have changed.
insert into ibid_effect_call (seq, record, birth, name, owes, letter, downstream_key, rules, trace, payload, result)
select x.seq, unhex(x.record), x.birth, x.name, x.owes, x.letter, x.downstream_key, x.rules, x.trace, unhex(x.payload),
       unhex(x.result)
from json_table(convert(?1 using utf8mb4), '$[*]' columns (
  seq bigint path '$.seq', record char(32) path '$.record', birth bigint path '$.birth', name longtext path '$.name',
  owes int path '$.owes', letter int path '$.letter', downstream_key longtext path '$.downstream_key',
  rules longtext path '$.rules', trace longtext path '$.trace', payload longtext path '$.payload', result longtext path '$.result'
)) x
on duplicate key update result = values(result)
