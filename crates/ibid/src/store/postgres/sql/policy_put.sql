-- Sets of rules, each once.
insert into ibid_policy (digest, data, ahead_us, put_at)
select p.digest, p.data, p.ahead_us, (extract(epoch from statement_timestamp()) * 1000000)::int8
from unnest($1::int8[], $2::bytea[], $3::int8[]) as p (digest, data, ahead_us)
order by p.digest
on conflict (digest) do nothing
