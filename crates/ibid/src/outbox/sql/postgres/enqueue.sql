-- Enqueues an effect in the caller's transaction. No row comes back if the record already has one of that name.
--
-- Effects of one aggregate get their numbers in the order of their commits: the lock on tenant and aggregate is held until the
-- commit, and the number is drawn after it. Without it: T1 draws 7; T2 draws 8 and commits; a worker calls 8; T1 commits.
--
-- An effect of an aggregate starts blocked, and leaves a turn. This statement must not decide whether an open effect is before
-- it: the snapshot may be older than the lock (always under REPEATABLE READ), so it may miss one that was committed
-- since, or see one as open that has ended since. turns.sql decides, after the commit.
with t as materialized (select coalesce($2::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now),
     l as materialized (
       select case when $11::text is not null
                   then pg_advisory_xact_lock(hashtextextended($11::text, hashtextextended($14::text, 7305))) is null end as held
     ),
     c as (
       insert into ibid_effect_call (record, birth, name, owes, letter, downstream_key, rules, trace, payload)
       select encode($1::bytea, 'hex')::uuid, $3, $4, $13, false, $10, $12, $15, $16
       from l
       on conflict (record, birth, name) do nothing
       returning seq
     ),
     e as (
       insert into ibid_effect (
         seq, nonce, due_at, lease_us, created_at, count, tries, state, blocked, dead_letter, tenant, kind, aggregate
       )
       select c.seq, $5, t.now + $8, $9, t.now, 1, 0, $7::int8::int2, $11::text is not null, false, $14, $6, $11
       from c, t
     ),
     n as (
       insert into ibid_effect_turn (tenant, aggregate)
       select $14, $11
       from c
       where $11::text is not null
     )
select c.seq from c
