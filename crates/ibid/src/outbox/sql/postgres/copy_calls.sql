-- Stores the calls of copied effects from the JSON array $1. Bytes are hexadecimal digits. Of a call that is stored only the
-- result may have changed.
insert into ibid_effect_call (seq, record, birth, name, owes, letter, downstream_key, rules, trace, payload, result)
select x.seq, x.record, x.birth, x.name, x.owes, x.letter, x.downstream_key, x.rules, x.trace, decode(x.payload, 'hex'),
       decode(x.result, 'hex')
from json_to_recordset($1::text::json) x (
  seq int8, record uuid, birth int8, name text, owes boolean, letter boolean, downstream_key text, rules text, trace text,
  payload text, result text
)
on conflict (seq) do update set result = excluded.result
