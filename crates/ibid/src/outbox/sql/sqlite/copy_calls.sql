-- Stores the calls of copied effects from the JSON array ?1. Bytes are hexadecimal digits. Of a call that is stored only the
-- result may have changed.
insert into ibid_effect_call (seq, record, birth, name, owes, letter, downstream_key, rules, trace, payload, result)
select v ->> 'seq', unhex(v ->> 'record'), v ->> 'birth', v ->> 'name', v ->> 'owes', v ->> 'letter',
       v ->> 'downstream_key', v ->> 'rules', v ->> 'trace', unhex(v ->> 'payload'), unhex(v ->> 'result')
from (select x.value as v from json_each(?1) x)
where true
on conflict (seq) do update set result = excluded.result
