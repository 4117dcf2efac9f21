-- Adds a dead letter of a ledger, once. No row comes back if it exists already, also if an operator has discarded it: the reaper
-- keeps a letter's name.
with t as materialized (select coalesce($2::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now),
     c as (
       insert into ibid_effect_call (record, birth, name, owes, letter, downstream_key, rules, payload)
       values (encode($1::bytea, 'hex')::uuid, $3, $4, false, true, $9, $10, $12)
       on conflict (record, birth, name) do nothing
       returning seq
     ),
     e as (
       insert into ibid_effect (
         seq, nonce, lease_us, created_at, count, tries, state, blocked, dead_letter, tenant, kind, last_error
       )
       select c.seq, $5, $8, t.now, 1, 0, $7::int8::int2, false, true, $11, $6, $13
       from c, t
     )
select c.seq from c
