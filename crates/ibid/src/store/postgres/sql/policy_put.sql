-- Sets of rules, each once.
insert into ibid_policy (digest, data)
select p.digest, p.data from unnest($1::int8[], $2::bytea[]) as p (digest, data) order by p.digest
on conflict (digest) do nothing
