-- Lists every call in the outbox by the key that the provider got. The state is a code; `done_at` is in microseconds since 1970.
-- In double quotes `key` is a name in every dialect. Without them it is a word of MySQL's language.
select c.downstream_key as "key", e.provider_id, e.kind, c.name, e.state, e.tenant, e.done_at
from ibid_effect e
join ibid_effect_call c on c.seq = e.seq
order by e.seq
